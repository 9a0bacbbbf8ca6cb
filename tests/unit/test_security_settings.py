"""Credentials from keywords, environment, files and AWS: what is refused, and what no message may show."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import logging
import pickle
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from kazoo.security import ACL, Id, Permissions
from moto import mock_aws

from lock_manager import LockSettings, Security, SettingsError, aws_secret, security
from lock_manager.zookeeper.client import acl_of

SECRET = "hunter2-8d1f"  # noqa: S105
SASL = {"auth": "sasl", "username": "etl", "password": SECRET}
REGION = "eu-central-1"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Secrets Manager, as moto plays it."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    aws_secret.fetch.cache_clear()
    with mock_aws():
        yield boto3.client("secretsmanager", region_name=REGION)
    aws_secret.fetch.cache_clear()


def read(**environ: str) -> Security:
    return Security.from_env(environ)


def refused(call: Any, *arguments: Any, **keywords: Any) -> str:
    """Return the message of the SettingsError: one sentence, without a secret."""
    with pytest.raises(SettingsError) as told:
        call(*arguments, **keywords)
    message = str(told.value)
    assert "\n" not in message
    assert SECRET not in message + repr(told.value) + repr(told.value.__cause__)
    return message


# -- shape -------------------------------------------------------------------------------------------------------------


def test_nothing_is_demanded_or_given_by_default():
    nothing = Security()
    assert (nothing.sasl_options(), nothing.auth_data(), nothing.new_znodes(), nothing.tls) == (None,) * 3 + (False,)
    assert LockSettings.from_env({"SLUICE_ZK_HOSTS": "a"}).security == nothing


@pytest.mark.parametrize("auth", ["sasl", "digest"])
def test_what_kazoo_is_given(auth):
    given = Security(auth=auth, username="etl", password=SECRET)
    sasl = {"mechanism": "DIGEST-MD5", "username": "etl", "password": SECRET}
    assert given.sasl_options() == (sasl if auth == "sasl" else None)
    assert given.auth_data() == ([("digest", f"etl:{SECRET}")] if auth == "digest" else None)
    assert acl_of(given) == [ACL(Permissions.ALL, Id("auth", ""))]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"auth": "kerberos"}, "sasl or digest"),
        ({"auth": "sasl"}, "username is not"),
        ({"auth": "sasl", "username": "etl"}, "password is not"),
        ({"password": SECRET}, "auth is not"),
        ({"username": "etl", "password": SECRET}, "auth is not"),
        ({**SASL, "username": "a:b"}, "colon"),
        ({**SASL, "password": ""}, "password"),
        ({**SASL, "password": 5}, "password"),
        ({"tls": "yes"}, "True or False"),
        ({"tls_key": SECRET}, "tls_certificate is not set"),
        ({"tls_certificate": "/nowhere"}, "tls_key is not set"),
        ({"tls_key_password": SECRET}, "tls_key is not"),
        ({"tls_ca": "/nowhere"}, "tls_ca names cannot be read"),
        ({"tls_certificate": "/nowhere", "tls_key": SECRET}, "tls_certificate names cannot be read"),
        ({"tls_ca": "-----BEGIN NONSENSE"}, "tls_ca contains no valid certificate"),
        (
            {"tls_certificate": "-----BEGIN NONSENSE", "tls_key": f"-----BEGIN {SECRET}"},
            "not a certificate and its private key",
        ),
    ],
)
def test_half_or_malformed(values, says):
    assert says in refused(Security, **values)


def test_a_file_in_the_wrong_format(tmp_path):
    binary = tmp_path / "ca.der"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "it is not text" in refused(Security, tls_ca=str(binary))


def key_pair(password: str | None = None) -> tuple[str, str]:
    """Return a certificate and its private key in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "job")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + dt.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    lock = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    return (
        certificate.public_bytes(pem).decode(),
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, lock).decode(),
    )


def test_a_key_that_does_not_open_or_is_of_another_certificate(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    certificate, key = key_pair(SECRET)
    assert Security(tls_certificate=certificate, tls_key=key, tls_key_password=SECRET).tls
    # OpenSSL would ask for it at the terminal, and wait.
    assert "tls_key_password is missing" in refused(Security, tls_certificate=certificate, tls_key=key)
    assert "wrong" in refused(Security, tls_certificate=certificate, tls_key=key, tls_key_password=SECRET[1:])
    _, another = key_pair()
    assert "not a certificate and its private key" in refused(Security, tls_certificate=certificate, tls_key=another)
    # Where OpenSSL read it.
    assert list(tmp_path.iterdir()) == []


def test_a_private_key_is_in_no_repr():
    certificate, key = key_pair()
    shown = repr(Security(tls_certificate=certificate, tls_key=key))
    assert "PRIVATE" not in shown
    assert key.splitlines()[1] not in shown


def test_sasl_without_its_package(monkeypatch):
    monkeypatch.setattr(security.importlib.util, "find_spec", lambda _: None)
    assert "pip install '.[sasl]' in a clone of Sluice" in refused(Security, **SASL)


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("sasl:etl:cdrwa", [("sasl", "etl", 31)]),
        ("auth::rw,world:anyone:r", [("auth", "", 3), ("world", "anyone", 1)]),
        ("x509:CN=job,OU=lake,C=DE:cdrwa,ip:::1:r", [("x509", "CN=job,OU=lake,C=DE", 31), ("ip", "::1", 1)]),
        ("digest:etl:8OgsN6e+0WY=:cd", [("digest", "etl:8OgsN6e+0WY=", 12)]),
    ],
)
def test_acl_as_zkcli_writes_it(text, entries):
    found = acl_of(Security(acl=text))
    assert [(each.id.scheme, each.id.id, each.perms) for each in found] == entries


@pytest.mark.parametrize("text", ["all", "sasl:etl", "sasl:etl:x", "sasl:etl:r,"])
def test_malformed_acl(text):
    assert "scheme:id:permissions" in refused(Security, acl=text)


# -- secrets stay secret -----------------------------------------------------------------------------------------------


def test_no_repr_shows_a_secret():
    settings = LockSettings(zk_hosts="a", security=Security(**SASL))
    for shown in (repr(settings), str(settings), f"{settings.security}", repr(dataclasses.replace(settings, job="x"))):
        assert SECRET not in shown
        assert "'etl'" in shown
    assert pickle.loads(pickle.dumps(settings)) == settings  # noqa: S301
    assert hash(settings) != hash(LockSettings(zk_hosts="a"))


def test_neither_a_host_list_nor_a_url_takes_credentials():
    for call, value in (
        (LockSettings.from_url, f"zk://etl:{SECRET}@a:2181"),
        (LockSettings.from_url, f"zk://a?password={SECRET}"),
        (LockSettings.from_url, f"zk://a?security={SECRET}"),
        (LockSettings.from_url, f"http://a?password={SECRET}"),
        (LockSettings, f"etl:{SECRET}@a:2181"),
    ):
        refused(call, **({"zk_hosts": value} if call is LockSettings else {"url": value}))
    refused(LockSettings.from_env, {"SLUICE_ZK_HOSTS": f"etl:{SECRET}@a"})
    # It would be taken for a field of the settings.
    assert LockSettings.from_env({"SLUICE_ZK_HOSTS": "a", "SLUICE_SECURITY": "x"}).security == Security()


# -- environment and files ---------------------------------------------------------------------------------------------


def test_from_the_environment():
    found = read(SLUICE_ZK_AUTH="sasl", SLUICE_ZK_USERNAME="etl", SLUICE_ZK_PASSWORD=SECRET, SLUICE_ZK_TLS="1")
    assert found == Security(**SASL, tls=True)
    assert not read(SLUICE_ZK_TLS="off").tls
    settings = LockSettings.from_env({"SLUICE_ZK_HOSTS": "a", "SLUICE_ZK_ACL": "auth::r"}, job="x")
    assert settings.security == Security(acl="auth::r")
    kept = Security(acl="auth::w")
    assert LockSettings.from_env({"SLUICE_ZK_HOSTS": "a", "SLUICE_ZK_ACL": "auth::r"}, security=kept).security is kept


def test_from_files(tmp_path):
    password, document = tmp_path / "password", tmp_path / "zk.json"
    password.write_text(SECRET + "\n")
    document.write_text(json.dumps({**SASL, "password": "another", "tls": True}))
    by_file = read(SLUICE_ZK_AUTH="sasl", SLUICE_ZK_USERNAME="etl", SLUICE_ZK_PASSWORD_FILE=str(password))
    assert by_file == Security(**SASL)
    by_document = read(SLUICE_ZK_SECRET_FILE=str(document))
    assert by_document == Security(**{**SASL, "password": "another"}, tls=True)
    # Single variables win.
    assert read(SLUICE_ZK_SECRET_FILE=str(document), SLUICE_ZK_PASSWORD=SECRET).password == SECRET
    assert read(SLUICE_ZK_SECRET_FILE=str(document), SLUICE_ZK_TLS="0").tls is False


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"SLUICE_ZK_TLS": "perhaps"}, "1 or 0"),
        ({"SLUICE_ZK_PASSWORD": ""}, "not empty"),
        # Somebody takes the variable for the password itself.
        (
            {"SLUICE_ZK_PASSWORD_FILE": SECRET},
            "the file that SLUICE_ZK_PASSWORD_FILE names cannot be read (No such file",
        ),
        ({"SLUICE_ZK_PASSWORD_FILE": "x", "SLUICE_ZK_PASSWORD": SECRET}, "both set"),
        ({"SLUICE_ZK_SECRET_FILE": "x", "SLUICE_ZK_SECRET": SECRET}, "both set"),
        ({"SLUICE_ZK_SECRET_FILE": SECRET}, "SLUICE_ZK_SECRET_FILE names cannot be read"),
        ({"SLUICE_ZK_SECRET": SECRET}, "must be arn:aws:secretsmanager"),
        ({"SLUICE_ZK_SECRET": json.dumps(SASL)}, "must be arn:aws:secretsmanager"),
    ],
)
def test_malformed_environment(environ, says):
    assert says in refused(Security.from_env, environ)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SECRET, "is not JSON"),
        (json.dumps(SECRET), "JSON object"),
        (json.dumps({**SASL, "passwd": SECRET}), "unknown key 'passwd'"),
        (json.dumps({**SASL, "password": [SECRET]}), "password must be a text"),
        (json.dumps({"auth": "sasl", "password": SECRET}), "username is not"),
    ],
)
def test_malformed_document(tmp_path: Path, text, says):
    document = tmp_path / "zk.json"
    document.write_text(text)
    assert says in refused(read, SLUICE_ZK_SECRET_FILE=str(document))


# -- AWS ---------------------------------------------------------------------------------------------------------------


def test_from_an_aws_secret_asked_for_once_and_never_logged(aws, caplog):
    arn = aws.create_secret(Name="zk", SecretString=json.dumps(SASL))["ARN"]
    logging.getLogger("botocore.parsers").setLevel(logging.NOTSET)
    caplog.clear()
    caplog.set_level(1)
    settings = LockSettings.from_env({"SLUICE_ZK_HOSTS": "a", "SLUICE_ZK_SECRET": arn})
    assert settings.security == Security(**SASL)
    assert "GetSecretValue" in caplog.text  # it was on
    assert SECRET not in caplog.text
    # The control: this is what botocore does.
    aws.get_secret_value(SecretId=arn)
    assert SECRET in caplog.text
    aws.delete_secret(SecretId=arn, ForceDeleteWithoutRecovery=True)
    assert read(SLUICE_ZK_SECRET=arn) == settings.security


def test_an_aws_secret_that_is_not_given(aws):
    arn = f"arn:aws:secretsmanager:{REGION}:123456789012:secret:none-AbCdEf"
    assert "ResourceNotFoundException" in refused(read, SLUICE_ZK_SECRET=arn)
    binary = aws.create_secret(Name="binary", SecretBinary=b"x")["ARN"]
    assert "binary" in refused(read, SLUICE_ZK_SECRET=binary)
    text = aws.create_secret(Name="text", SecretString=SECRET)["ARN"]
    assert f"the secret {text} is not JSON" in refused(read, SLUICE_ZK_SECRET=text)


def test_an_aws_secret_without_credentials(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    arn = f"arn:aws:secretsmanager:{REGION}:123456789012:secret:zk-AbCdEf"
    assert "Unable to locate credentials" in refused(read, SLUICE_ZK_SECRET=arn)


def test_an_aws_secret_without_boto3(monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    arn = f"arn:aws:secretsmanager:{REGION}:123456789012:secret:zk-AbCdEf"
    assert "pip install '.[aws]' in a clone of Sluice" in refused(read, SLUICE_ZK_SECRET=arn)
