"""How values are stored and come back, in one place to import from: forms of single values, inputs of functions."""

from flowfabric.sdk.annotations import Names, names_of
from flowfabric.sdk.forms import Form, Stored, form_of, return_form
from flowfabric.sdk.inputs import Inputs, inputs_of

__all__ = ["Form", "Inputs", "Names", "Stored", "form_of", "inputs_of", "names_of", "return_form"]
