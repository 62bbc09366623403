"""The store that a command is about."""

from __future__ import annotations

import argparse

from flowfabric.engine.connecting import Connecting, connect
from flowfabric.sdk.default_store import default_store


def looking(arguments: argparse.Namespace) -> Connecting:
    """The store for a command that only reads. A look never makes one or changes its schema."""
    return _connecting(arguments, durable=False, migrate=False)


def writing(arguments: argparse.Namespace) -> Connecting:
    """The store for a command that writes: what is answered must survive. It is not made either."""
    return _connecting(arguments, durable=not arguments.not_durable, migrate=False)


def migrating(arguments: argparse.Namespace) -> Connecting:
    """The store, made and brought to the present schema if need be."""
    return _connecting(arguments, durable=not arguments.not_durable, migrate=True)


def store_of(arguments: argparse.Namespace) -> str:
    """The address of the store."""
    return default_store() if arguments.store is None else str(arguments.store)


def _connecting(arguments: argparse.Namespace, *, durable: bool, migrate: bool) -> Connecting:
    return connect(
        store_of(arguments), namespace=arguments.namespace, schema=arguments.schema, durable=durable, migrate=migrate,
        pooler=arguments.pooler, pool_size=2,
    )  # fmt: skip
