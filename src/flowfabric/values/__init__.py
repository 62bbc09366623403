"""Python values as JSON: codecs for single values, and the inputs of functions."""

from flowfabric.values.codecs import StoredValue, ValueCodec, codec_for, return_codec
from flowfabric.values.inputs import Inputs, inputs_for
from flowfabric.values.signatures import Namespace, frame_namespace

__all__ = [
    "ValueCodec",
    "Inputs",
    "Namespace",
    "StoredValue",
    "codec_for",
    "inputs_for",
    "frame_namespace",
    "return_codec",
]
