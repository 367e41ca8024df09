"""Certificates and kubeconfigs of one run: a certificate authority, the servers, and one client per user.

Everything lies in the run's folder with mode 0600 and goes with it. Made by the openssl command, since the standard
library can't sign.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import subprocess
from pathlib import Path

NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


def service_ip(services: str) -> str:
    """The address of the Service `kubernetes`: the first of the range."""
    return str(ipaddress.ip_network(services)[1])


def _openssl(*args: str | Path, folder: Path) -> None:
    subprocess.run(["openssl", *map(str, args)], cwd=folder, check=True, capture_output=True)


class Authority:
    """Signs with a key of its own in `folder`: a `new` one or the one that is there. Files are NAME.crt, NAME.key."""

    def __init__(self, folder: Path, new: bool = True) -> None:
        self.folder = folder
        if not new:
            return
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._key("ca")
        usage = ["-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign"]
        _openssl(
            "req", "-x509", "-new", "-key", "ca.key", "-sha256", "-days", "7", "-subj", "/CN=meshnet-test", *usage,
            "-out", "ca.crt", folder=folder,
        )  # fmt: skip

    def _key(self, name: str) -> None:
        _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{name}.key", folder=self.folder)
        (self.folder / f"{name}.key").chmod(0o600)

    def sign(self, name: str, subject: str, names: tuple[str, ...] = ()) -> None:
        """A client certificate, or a server's where `names` (DNS names and addresses) are given."""
        self._key(name)
        lines = ["basicConstraints=CA:FALSE", "keyUsage=critical,digitalSignature"]
        lines.append(f"extendedKeyUsage={'serverAuth' if names else 'clientAuth'}")
        if names:
            kinds = ("IP" if part.replace(".", "").isdigit() else "DNS" for part in names)
            lines.append(
                "subjectAltName=" + ",".join(f"{kind}:{part}" for kind, part in zip(kinds, names, strict=True))
            )
        (self.folder / f"{name}.ext").write_text("\n".join(lines))
        _openssl("req", "-new", "-key", f"{name}.key", "-subj", subject, "-out", f"{name}.csr", folder=self.folder)
        _openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "7",
            "-sha256", "-extfile", f"{name}.ext", "-out", f"{name}.crt", folder=self.folder,
        )  # fmt: skip

    def service_account_keys(self) -> None:
        _openssl("genrsa", "-out", "sa.key", "2048", folder=self.folder)
        _openssl("rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub", folder=self.folder)

    def kubeconfig(self, name: str, server: str) -> Path:
        """NAME.kubeconfig for the client certificate NAME. JSON, which is YAML too."""

        def data(file: str) -> str:
            return base64.b64encode((self.folder / file).read_bytes()).decode()

        user = {"client-certificate-data": data(f"{name}.crt"), "client-key-data": data(f"{name}.key")}
        cluster = {"server": server, "certificate-authority-data": data("ca.crt")}
        return write_kubeconfig(self.folder / f"{name}.kubeconfig", cluster, user)


def write_kubeconfig(path: Path, cluster: dict[str, str], user: dict[str, str]) -> Path:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }
    path.write_text(json.dumps(document, indent=1))
    path.chmod(0o600)
    return path
