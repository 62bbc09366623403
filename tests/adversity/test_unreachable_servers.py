"""A server that is down is named with its address and the reason, by `connect`, an open engine and the command line."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from flowfabric.engine import Unavailable, connect
from tests.end_to_end.cli.shell import Shell
from tests.postgres_server import PostgresServer
from tests.stores import PostgresTestStore, opened


@pytest.fixture
def closed_port() -> int:
    """Return a port of this host on which nothing listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


async def _refusal(url: str) -> Unavailable:
    with pytest.raises(Unavailable) as refused:
        await connect(url)
    assert refused.value.code == "server_unreachable"
    assert refused.value.fields["sent"] is False
    return refused.value


async def test_a_server_that_is_down_is_named_with_its_address_and_the_reason(closed_port: int) -> None:
    refused = await _refusal(f"postgresql://ann:secret@127.0.0.1:{closed_port}/shop")
    assert refused.message.startswith(f"cannot reach 127.0.0.1:{closed_port} (connection refused); check that")
    assert "secret" not in str(refused)


async def test_every_address_of_a_url_is_named(closed_port: int, tmp_path: Path) -> None:
    two = await _refusal(f"postgresql://127.0.0.1:{closed_port},localhost:{closed_port}/shop")
    assert f"cannot reach 127.0.0.1:{closed_port}, localhost:{closed_port} (connection refused)" in two.message
    socketed = await _refusal(f"postgresql://ann@/shop?host={tmp_path}")
    assert f"cannot reach {tmp_path} (no such file or directory)" in socketed.message
    unknown = await _refusal("postgresql://db.invalid/shop")
    assert "cannot reach db.invalid:5432 (" in unknown.message


async def test_an_open_engine_names_its_server_after_the_server_has_stopped(spare_server: PostgresServer) -> None:
    store = PostgresTestStore(spare_server.dsn)
    async with opened(store, retry_for=0, pool_size=1) as engine:
        spare_server.stop("immediate")
        codes, message = [], ""
        for _ in range(2):
            with pytest.raises(Unavailable) as lost:
                await engine.ping()
            codes.append(lost.value.code)
            message = lost.value.message
        spare_server.start()
    assert codes == ["connection_lost", "server_unreachable"]
    assert message.startswith("cannot reach /")


async def test_a_command_names_a_server_that_is_down(closed_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    output = await Shell(None, capsys).run("--store", f"postgresql://127.0.0.1:{closed_port}/shop", "list")
    assert output.code == 5
    assert f"server_unreachable: cannot reach 127.0.0.1:{closed_port} (connection refused)" in output.error
