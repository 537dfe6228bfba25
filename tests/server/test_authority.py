"""The authority, judged by the same library that clients use: TLS itself."""

import datetime
import socket
import ssl
import threading

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from ravnest.api import SERVER_NAME
from ravnest.errors import JobError, ServerError
from ravnest.server.authority import open_authority, server_certificate

NOW = datetime.datetime.now(datetime.UTC)


def request_for(name, key=None):
    key = key or ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    names = x509.SubjectAlternativeName([x509.DNSName(name), x509.DNSName(SERVER_NAME)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    request = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM).decode(), key


def names_in(pem):
    certificate = x509.load_pem_x509_certificate(pem.encode())
    held = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return certificate, {str(name.value) for name in held}


def test_the_authority_is_made_once_and_its_key_is_private(tmp_path):
    first = open_authority(tmp_path, NOW)
    again = open_authority(tmp_path, NOW)
    assert first.certificate == again.certificate
    assert (tmp_path / "ca.key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "ca.pem").read_text() == first.pem


def test_a_lost_key_is_not_papered_over(tmp_path):
    open_authority(tmp_path, NOW)
    (tmp_path / "ca.key").unlink()
    with pytest.raises(ServerError, match=r"ca.key is missing"):
        open_authority(tmp_path, NOW)


def test_an_expired_authority_says_so(tmp_path):
    open_authority(tmp_path, NOW)
    with pytest.raises(ServerError, match="has expired"):
        open_authority(tmp_path, NOW + datetime.timedelta(days=4000))


def test_a_server_is_verified_by_its_fixed_name_with_nothing_but_the_authority(tmp_path):
    authority = open_authority(tmp_path, NOW)
    certificate, key = server_certificate(authority, tmp_path, ["127.0.0.1", "box.lan"], NOW)
    assert key.stat().st_mode & 0o777 == 0o600
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate, key)
    for name in (SERVER_NAME, "127.0.0.1", "box.lan"):
        assert _handshake(serving, authority.pem, name) is None
    assert "not valid for" in _handshake(serving, authority.pem, "elsewhere.lan")


def _handshake(serving, authority_pem, name):
    """None if the client accepts the server under this name, otherwise what it says."""
    ours, theirs = socket.socketpair()

    def serve():
        try:
            serving.wrap_socket(theirs, server_side=True).close()
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    client = ssl.create_default_context(cadata=authority_pem)
    try:
        client.wrap_socket(ours, server_hostname=name).close()
    except ssl.SSLCertVerificationError as error:
        return str(error)
    finally:
        ours.close()
        thread.join()
    return None


def test_the_server_certificate_is_kept_while_it_suits_and_replaced_when_not(tmp_path):
    authority = open_authority(tmp_path, NOW)

    def content(names, now=NOW):
        return server_certificate(authority, tmp_path, names, now)[0].read_bytes()

    first = content(["a.lan", "b.lan"])
    assert content(["b.lan"]) == first
    assert content(["c.lan"]) != first
    second = content(["c.lan"])
    assert content(["c.lan"], NOW + datetime.timedelta(days=800)) != second
    (tmp_path / "server.key").write_bytes((tmp_path / "ca.key").read_bytes())
    assert content(["c.lan"]) != second


def test_a_certificate_that_was_made_while_the_clock_was_ahead_is_replaced(tmp_path):
    authority = open_authority(tmp_path, NOW)
    ahead = server_certificate(authority, tmp_path, ["a"], NOW + datetime.timedelta(days=400))
    written = ahead[0].read_bytes()
    assert server_certificate(authority, tmp_path, ["a"], NOW)[0].read_bytes() != written


def test_an_authority_that_is_not_good_yet_says_so_and_keeps_its_certificates(tmp_path, caplog):
    """It may have been made while the clock was ahead, or the clock is slow now."""
    later = NOW + datetime.timedelta(days=400)
    authority = open_authority(tmp_path, later)
    written = server_certificate(authority, tmp_path, ["a"], later)[0].read_bytes()
    assert not caplog.records
    assert open_authority(tmp_path, NOW).pem == authority.pem
    assert "set the clock" in caplog.text
    assert server_certificate(authority, tmp_path, ["a"], NOW)[0].read_bytes() == written


def test_a_certificate_of_another_authority_is_replaced(tmp_path):
    other = open_authority(tmp_path / "other", NOW)
    authority = open_authority(tmp_path, NOW)
    foreign = server_certificate(other, tmp_path, ["a.lan"], NOW)[0].read_bytes()
    assert server_certificate(authority, tmp_path, ["a.lan"], NOW)[0].read_bytes() != foreign


def test_a_provider_gets_its_own_name_whatever_it_asks_for(tmp_path):
    authority = open_authority(tmp_path, NOW)
    request, key = request_for("provider-1")
    certificate, names = names_in(authority.sign_provider(7, request, NOW))
    assert names == {"provider-7"}
    assert certificate.public_key() == key.public_key()
    certificate.verify_directly_issued_by(authority.certificate)
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert constraints.ca is False


@pytest.mark.parametrize("request_pem", ["", "nonsense", "-----BEGIN CERTIFICATE REQUEST-----\n"])
def test_what_is_no_request_is_refused(tmp_path, request_pem):
    with pytest.raises(JobError, match="no certificate signing request"):
        open_authority(tmp_path, NOW).sign_provider(7, request_pem, NOW)


def test_a_key_of_another_kind_is_refused(tmp_path):
    request, _ = request_for("x", rsa.generate_private_key(65537, 2048))
    with pytest.raises(JobError, match="EC key"):
        open_authority(tmp_path, NOW).sign_provider(7, request, NOW)
