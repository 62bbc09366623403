"""Tests for the requirements of a store: database version and a file system with reliable locks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowfabric.backends.postgres import pool as running
from flowfabric.backends.postgres import store as postgres
from flowfabric.backends.sqlite import connection as sqlite
from flowfabric.engine import InvalidRequest

# Lines of /proc/self/mounts: device, mount point, type, options. The kernel writes spaces and backslashes in octal.
MOUNTS = r"""
overlay / overlay rw,relatime 0 0
/dev/sda1 /data ext4 rw 0 0
server:/export /data/shared nfs4 rw,vers=4.2 0 0
me@server: /home/me/far\040away fuse.sshfs rw 0 0
//server/share /mnt/back\134slash cifs rw 0 0
/dev/sdb1 /mnt/stick fuseblk rw 0 0
home /home/me/near fuse.fuse-overlayfs rw 0 0
gateway:bucket /mnt/bucket fuse.rclone rw 0 0
/dev/sdc1 /mnt/twice ext4 rw 0 0
server:/export /mnt/twice nfs rw 0 0
broken
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "overlay"),
        ("/tmp/jobs", "overlay"),
        ("/data", "ext4"),
        ("/data/jobs", "ext4"),
        ("/database", "overlay"),
        ("/data/shared", "nfs4"),
        ("/data/shared/jobs/today", "nfs4"),
        ("/data/sharedwith", "ext4"),
        ("/home/me/far away/jobs", "fuse.sshfs"),
        ("/home/me/far", "overlay"),
        ("/home/me/near/jobs", "fuse.fuse-overlayfs"),
        ("/mnt/back\\slash", "cifs"),
        ("/mnt/twice/jobs", "nfs"),
    ],
)
def test_file_system_is_that_of_the_nearest_mount_point(folder: str, kind: str) -> None:
    assert sqlite.find_file_system(Path(folder), MOUNTS) == kind


def test_unknown_file_system_is_accepted() -> None:
    assert sqlite.find_file_system(Path("/tmp"), "") == ""
    sqlite.check_file_system("/tmp/jobs.db", "")


@pytest.mark.parametrize("folder", ["/data/shared", "/home/me/far away", "/mnt/back\\slash", "/mnt/bucket"])
def test_file_on_a_network_file_system_is_rejected(folder: str) -> None:
    kind = sqlite.find_file_system(Path(folder), MOUNTS)
    with pytest.raises(InvalidRequest) as refused:
        sqlite.check_file_system(f"{folder}/jobs.db", kind)
    assert (refused.value.code, refused.value.fields["file_system"]) == ("network_file_system", kind)
    assert f"{folder}/jobs.db" in refused.value.message


@pytest.mark.parametrize("folder", ["/", "/data", "/mnt/stick", "/home/me/near"])
def test_file_on_a_local_disk_is_accepted(folder: str) -> None:
    sqlite.check_file_system(f"{folder}/jobs.db", sqlite.find_file_system(Path(folder), MOUNTS))


def test_check_environment_reads_the_mounts_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_bytes(b"\xff\xfe /strange\xff ext4 rw 0 0\n" + f"server:/ {tmp_path} nfs rw 0 0\n".encode())
    monkeypatch.setattr(sqlite, "_MOUNTS", mounts)
    with pytest.raises(InvalidRequest) as refused:
        sqlite.check_environment(str(tmp_path / "jobs.db"))
    assert refused.value.code == "network_file_system"
    monkeypatch.setattr(sqlite, "_MOUNTS", tmp_path / "missing")
    sqlite.check_environment(str(tmp_path / "jobs.db"))


@pytest.mark.parametrize(("check", "version"), [(sqlite.check_version, (3, 37, 2)), (postgres.check_version, 130014)])
def test_old_database_version_is_rejected(check: Callable[[Any], None], version: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check(version)
    assert refused.value.code == "unsupported_version"
    assert "3.37.2 is too old; use 3.38.0" in refused.value.message or "13 is too old; use 14" in refused.value.message


def test_recent_database_version_is_accepted() -> None:
    for version in ((3, 38, 0), (3, 100, 0), (4, 0, 0)):
        sqlite.check_version(version)
    for number in (140000, 150018, 180001):
        postgres.check_version(number)


def test_conflict_backoff_grows_to_a_tenth_of_a_second() -> None:
    backoffs_s = [running.max_backoff_s(tries) for tries in range(1, 10)]
    assert backoffs_s == sorted(backoffs_s)
    assert (backoffs_s[0], backoffs_s[-1], sum(backoffs_s) < 1) == (0.01, 0.1, True)
