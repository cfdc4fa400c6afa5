"""The cluster's own certificate authority; it signs the certificates of the server and of clients."""

import ipaddress
import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from colocate.lab.api.store import ObjectStore

_YEARS = timedelta(days=3650)
_HOUR = timedelta(hours=1)


class Pair(msgspec.Struct, frozen=True):
    """A certificate and its key, in PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """Signs certificates; they stay valid across restarts of the cluster."""

    def __init__(self, pair: Pair) -> None:
        self.certificate = pair.certificate
        self._issuer = x509.load_pem_x509_certificate(pair.certificate)
        key = serialization.load_pem_private_key(pair.key, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key = key

    @classmethod
    def of(cls, store: ObjectStore) -> "Authority":
        """The authority in the cluster's store."""
        return cls(msgspec.msgpack.decode(store.keep("ca", _new_authority), type=Pair))

    def client(self, name: str, *groups: str) -> Pair:
        """A certificate by which a client is `name`, in `groups`."""
        return self._sign(_subject(name, groups), ExtendedKeyUsageOID.CLIENT_AUTH, [])

    def server(self, name: str, *hosts: str) -> Pair:
        """A certificate by which a server is `name`, on this machine and at `hosts`."""
        names = [_general_name(host) for host in dict.fromkeys(("127.0.0.1", "localhost", *hosts))]
        return self._sign(_subject(name, ()), ExtendedKeyUsageOID.SERVER_AUTH, names)

    def server_context(self, *hosts: str) -> ssl.SSLContext:
        """The server's TLS context; clients may show a certificate of this authority."""
        pair = self.server("kube-apiserver", *hosts)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # The ssl module reads keys only from files.
        with tempfile.TemporaryDirectory(prefix="colocate-") as folder:
            path = Path(folder, "server.pem")
            path.write_bytes(pair.certificate + pair.key)
            context.load_cert_chain(path)
        context.load_verify_locations(cadata=self.certificate.decode())
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def _sign(self, subject: x509.Name, usage: x509.ObjectIdentifier, names: list[x509.GeneralName]) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(subject, self._issuer.subject, key.public_key())
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(issuer, critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return _pair(builder.sign(self._key, hashes.SHA256()), key)


def _new_authority() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject("colocate-lab", ())
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        _builder(subject, subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return msgspec.msgpack.encode(_pair(builder.sign(key, hashes.SHA256()), key))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    # The machine's time and not the cluster's clock: real clients check these dates.
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _HOUR)
        .not_valid_after(now + _YEARS)
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def _subject(name: str, groups: tuple[str, ...]) -> x509.Name:
    organisations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organisations, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
