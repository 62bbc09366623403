"""The registry of verbs. The parser, help, completion and the reference are made from it."""

from flowfabric.cli.verbs import executions, operating, store

VERBS = (*executions.VERBS, *operating.VERBS, *store.VERBS)
