"""The authority of one job: it signs a certificate for each of the job's processes.

A certificate identifies its process in three ways. Peers check a DNS name of the role
(`ps.elasticdl`). The master reads a URI (`elasticdl://JOB/ps/0`) when the process asks for its next
certificate. The purposes say whether the process may be a server; a user's command may not. A
worker serves the other workers of its ring. Its DNS name prevents that it poses as a master or a
ps replica.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from elasticdl.errors import AuthenticationError, ConfigError
from elasticdl.job import Role
from elasticdl.runtime.credentials.files import (
    AUTHORITY_FILE,
    AUTHORITY_KEY_FILE,
    TlsFiles,
    of_process,
    write_private,
)

USER = "user"
"""The role of commands such as `elasticdl train`, which only speak to the master."""

_CLOCK_BEHIND = timedelta(days=30)
"""A process accepts a certificate if its clock is behind the master's by at most this time.

Clocks of machines differ, and they are set. The authority decides on trust, and not a clock."""

_CLOCK_AHEAD = timedelta(days=3)
"""The same for a clock that is ahead. A stolen certificate is valid for this much longer."""

_AUTHORITY_LIFE = timedelta(days=10 * 365)  # before and after now, since it is never renewed


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a process. `role` is a value of `elasticdl.job.Role`, or `USER`."""

    job: str
    role: str
    index: int = 0

    @property
    def name(self) -> str:
        """Its name in logs and files: `ps-0`, or `master` and `user`, which have no number."""
        return self.role if self.role in (Role.MASTER, USER) else f"{self.role}-{self.index}"

    @property
    def uri(self) -> str:
        """Its name in certificates."""
        return f"elasticdl://{quote(self.job, safe='')}/{self.role}/{self.index}"

    @classmethod
    def of_uri(cls, uri: str) -> Identity:
        """Return the identity in the URI of a certificate.

        Raises:
            AuthenticationError: The URI has another form.
        """
        parts = urlsplit(uri)
        path = parts.path.split("/")
        if parts.scheme != "elasticdl" or len(path) != 3 or not path[2].isdecimal():
            raise AuthenticationError(
                f"the certificate names {uri!r}, expected elasticdl://JOB/ROLE/INDEX"
            )
        return cls(unquote(parts.netloc), path[1], int(path[2]))


class Authority:
    """Signs certificates. Its key never leaves the master and the folder that the user made."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def create(cls, folder: Path, job: str) -> Authority:
        """Make an authority for a new job, and write its two files into the folder.

        Raises:
            OSError: They cannot be written.
        """
        # A user who can read the key in this folder can pose as any process of the job.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        # A common name has at most 64 characters in X.509.
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"elasticdl {job}"[:64])])
        now = datetime.now(UTC)
        key_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _AUTHORITY_LIFE)
            .not_valid_after(now + _AUTHORITY_LIFE)
            # No process of the job may sign certificates for others.
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(key_id, critical=False)
            .sign(key, hashes.SHA256())
        )
        write_private(folder / AUTHORITY_KEY_FILE, _pem_of_key(key))
        # The certificate comes last, so if it exists, the key exists too.
        write_private(folder / AUTHORITY_FILE, certificate.public_bytes(_PEM))
        return cls(certificate, key)

    @classmethod
    def load(cls, folder: Path) -> Authority:
        """Read the files that `create` wrote.

        Raises:
            ConfigError: A file is missing or holds something else. The message names it.
        """
        path = folder / AUTHORITY_FILE
        try:
            certificate = path.read_bytes()
            path = folder / AUTHORITY_KEY_FILE
            key = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{path}: expected the authority of a job: {error}") from error
        return cls.parse(certificate, key, str(folder))

    @classmethod
    def parse(cls, certificate: bytes, key: bytes, where: str) -> Authority:
        """Read an authority from the contents of its two files.

        Raises:
            ConfigError: A file holds something else. The message names it.
        """
        name = AUTHORITY_FILE
        try:
            own = x509.load_pem_x509_certificate(certificate)
            name = AUTHORITY_KEY_FILE
            private = serialization.load_pem_private_key(key, None)
        except ValueError as error:
            raise ConfigError(
                f"{where}/{name}: expected the authority of a job: {error}"
            ) from error
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise ConfigError(
                f"{where}/{name}: expected an elliptic key, found a {type(private).__name__}"
            )
        return cls(own, private)

    def issue(self, folder: Path, identity: Identity, life_seconds: float) -> TlsFiles:
        """Make a key and a certificate for a process that is about to start.

        Raises:
            OSError: They cannot be written.
        """
        files = of_process(folder, identity.name)
        write_private(files.certificate, self.make(identity, life_seconds))
        return files

    def files_for(self, identity: Identity, life_seconds: float) -> dict[str, bytes]:
        """Return the files of a process, name -> content: the authority, and its certificate."""
        own = of_process(Path(), identity.name).certificate.name
        return {AUTHORITY_FILE: self.pem, own: self.make(identity, life_seconds)}

    @property
    def pem(self) -> bytes:
        """Its certificate, in PEM."""
        return self._certificate.public_bytes(_PEM)

    def make(self, identity: Identity, life_seconds: float) -> bytes:
        """Return a new key and its certificate, in PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        return self._sign(key.public_key(), identity, life_seconds) + _pem_of_key(key)

    def sign(self, request: bytes, identity: Identity, life_seconds: float) -> bytes:
        """Return a certificate for the key of a request.

        Only the key of the request counts. The caller knows the identity from another source.

        Args:
            request: PEM, made by `make_request`.
            identity: The process that asks.
            life_seconds: The time for which the certificate is valid.

        Raises:
            AuthenticationError: It is no request, or the sender does not have the key.
        """
        try:
            asked = x509.load_pem_x509_csr(request)
            if not asked.is_signature_valid:
                raise InvalidSignature
        except (ValueError, InvalidSignature) as error:
            raise AuthenticationError(
                f"expected a request for a certificate, signed by its own key: {error}"
            ) from error
        key = asked.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise AuthenticationError(f"expected an elliptic key, found a {type(key).__name__}")
        return self._sign(key, identity, life_seconds)

    def _sign(
        self, key: ec.EllipticCurvePublicKey, identity: Identity, life_seconds: float
    ) -> bytes:
        now = datetime.now(UTC)
        names = [
            x509.DNSName(f"{identity.role}.elasticdl"),
            x509.UniformResourceIdentifier(identity.uri),
        ]
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if identity.role in tuple(Role):  # a user serves nobody
            purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, identity.name)])
        issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        signed = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._certificate.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCK_BEHIND)
            .not_valid_after(now + timedelta(seconds=life_seconds) + _CLOCK_AHEAD)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(issuer_key, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return signed.public_bytes(_PEM)


def make_request(name: str) -> tuple[bytes, bytes]:
    """Return a new key, and a request for a certificate of it, both in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return _pem_of_key(key), request.sign(key, hashes.SHA256()).public_bytes(_PEM)


def expiry(certificate: bytes) -> float:
    """Return the planned end of a certificate in PEM, in seconds since 1970.

    The certificate itself is valid a little longer, for processes whose clocks are ahead.

    Raises:
        ConfigError: It is no certificate.
    """
    try:
        end = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    except ValueError as error:
        raise ConfigError(f"expected a certificate in PEM: {error}") from error
    return (end - _CLOCK_AHEAD).timestamp()


_PEM = serialization.Encoding.PEM


def _pem_of_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
