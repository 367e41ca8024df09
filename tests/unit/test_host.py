"""What a machine lacks for nodes is said before anything is made on it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cluster import host


def test_packages_that_are_missing_are_named_and_no_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for command in ("runc", "ip", "nft", "conntrack", "nsenter", "openssl"):
        (tmp_path / command).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(host, "CNI", (tmp_path / "cni",))
    assert host.missing_packages() == ["debootstrap", "containernetworking-plugins"]
    (tmp_path / "debootstrap").touch(mode=0o755)
    (tmp_path / "cni").mkdir()
    (tmp_path / "cni" / "bridge").touch()
    assert host.install_packages() == [], "nothing is missing, nothing is run"


def test_without_apt_the_missing_packages_are_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(host.HostError, match=r"no apt-get here.* debootstrap runc"):
        host.install_packages()


def test_a_failing_apt_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "apt-get").write_text("#!/bin/sh\necho 'no network' >&2\nexit 100\n")
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(host.HostError, match="apt-get update: no network"):
        host.install_packages()


def test_a_user_without_rights_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert host.obstacles(tmp_path) == ["it needs root"]


@pytest.mark.skipif(os.geteuid() != 0, reason="what only root can try")
def test_what_is_forbidden_is_said_with_its_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "unshare").write_text("#!/bin/sh\necho 'unshare failed: Operation not permitted' >&2\nexit 1\n")
    (tmp_path / "unshare").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(host, "cgroup_hierarchies", lambda: [tmp_path / "none"])
    found = host.obstacles(tmp_path / "scratch")
    assert [line.split(":")[0] for line in found] == ["no network namespaces", "no overlay mounts", "no cgroups"]
    assert "Operation not permitted" in found[0]
