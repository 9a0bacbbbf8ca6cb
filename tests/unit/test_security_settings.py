"""Credentials from keywords, environment, files and AWS: no representation, message or log contains a secret."""

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
MISSING_ARN = f"arn:aws:secretsmanager:{REGION}:123456789012:secret:zk-AbCdEf"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Start a Secrets Manager that moto simulates; yield its client."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    aws_secret.fetch_secret.cache_clear()
    with mock_aws():
        yield boto3.client("secretsmanager", region_name=REGION)
    aws_secret.fetch_secret.cache_clear()


def from_env(**environ: str) -> Security:
    return Security.from_env(environ)


def error_of(call: Any, *arguments: Any, **keywords: Any) -> str:
    """Return the message of the SettingsError that a call raises; assert that it is one line without a secret."""
    with pytest.raises(SettingsError) as error:
        call(*arguments, **keywords)
    message = str(error.value)
    assert "\n" not in message
    assert SECRET not in message + repr(error.value) + repr(error.value.__cause__)
    return message


# -- fields ------------------------------------------------------------------------------------------------------------


def test_no_security_is_the_default():
    default = Security()
    assert (default.sasl_options(), default.auth_data(), default.acl_of_new_znodes(), default.tls) == (None,) * 3 + (
        False,
    )
    assert LockSettings.from_env({"SLUICE_ZK_HOSTS": "a"}).security == default


@pytest.mark.parametrize("auth", ["sasl", "digest"])
def test_kazoo_gets_credentials_and_an_acl(auth):
    settings = Security(auth=auth, username="etl", password=SECRET)
    sasl = {"mechanism": "DIGEST-MD5", "username": "etl", "password": SECRET}
    assert settings.sasl_options() == (sasl if auth == "sasl" else None)
    assert settings.auth_data() == ([("digest", f"etl:{SECRET}")] if auth == "digest" else None)
    assert acl_of(settings) == [ACL(Permissions.ALL, Id("auth", ""))]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"auth": "gssapi"}, "kerberos, sasl or digest"),
        ({"auth": "kerberos", "username": "etl"}, "username does not apply to auth=kerberos"),
        ({"auth": "kerberos", "password": SECRET}, "password does not apply to auth=kerberos"),
        ({**SASL, "kerberos_principal": "etl"}, "kerberos_principal does not apply to auth=sasl"),
        ({"kerberos_keytab": "/nowhere"}, "kerberos_keytab needs auth=kerberos"),
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
def test_incomplete_or_malformed_settings_are_refused(values, message):
    assert message in error_of(Security, **values)


def test_a_file_that_is_not_text_is_refused(tmp_path):
    binary = tmp_path / "ca.der"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "it is not text" in error_of(Security, tls_ca=str(binary))


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
    encryption = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    return (
        certificate.public_bytes(pem).decode(),
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, encryption).decode(),
    )


def test_a_key_must_decrypt_and_match_its_certificate(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    certificate, key = key_pair(SECRET)
    assert Security(tls_certificate=certificate, tls_key=key, tls_key_password=SECRET).tls
    # OpenSSL would prompt for the password at the terminal, and wait.
    assert "tls_key_password is missing" in error_of(Security, tls_certificate=certificate, tls_key=key)
    assert "wrong" in error_of(Security, tls_certificate=certificate, tls_key=key, tls_key_password=SECRET[1:])
    _, other_key = key_pair()
    assert "not a certificate and its private key" in error_of(Security, tls_certificate=certificate, tls_key=other_key)
    # OpenSSL reads the key from a temporary file in this folder, which must be deleted.
    assert list(tmp_path.iterdir()) == []


def test_repr_contains_no_private_key():
    certificate, key = key_pair()
    text = repr(Security(tls_certificate=certificate, tls_key=key))
    assert "PRIVATE" not in text
    assert key.splitlines()[1] not in text


def test_sasl_without_its_package_is_refused(monkeypatch):
    monkeypatch.setattr(security.importlib.util, "find_spec", lambda _: None)
    assert "pip install '.[sasl]' in a clone of Sluice" in error_of(Security, **SASL)


def test_kerberos_without_its_packages_is_refused(monkeypatch):
    monkeypatch.setattr(security.importlib.util, "find_spec", lambda _: None)
    assert "[kerberos]" in error_of(Security, auth="kerberos")


def test_kerberos_comes_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setattr(security.importlib.util, "find_spec", lambda _: object())
    keytab = tmp_path / "etl.keytab"
    keytab.touch()
    names = {"PRINCIPAL": "etl", "KEYTAB": str(keytab), "SERVICE": "zk"}
    environ = {f"SLUICE_ZK_KERBEROS_{name}": value for name, value in names.items()}
    expected = Security(auth="kerberos", kerberos_principal="etl", kerberos_keytab=str(keytab), kerberos_service="zk")
    assert from_env(SLUICE_ZK_AUTH="kerberos", **environ) == expected
    assert acl_of(expected) == [ACL(Permissions.ALL, Id("auth", ""))]
    keytab.unlink()
    assert "the keytab that kerberos_keytab names cannot be read" in error_of(
        from_env, SLUICE_ZK_AUTH="kerberos", **environ
    )


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("sasl:etl:cdrwa", [("sasl", "etl", 31)]),
        ("auth::rw,world:anyone:r", [("auth", "", 3), ("world", "anyone", 1)]),
        ("x509:CN=job,OU=lake,C=DE:cdrwa,ip:::1:r", [("x509", "CN=job,OU=lake,C=DE", 31), ("ip", "::1", 1)]),
        ("digest:etl:8OgsN6e+0WY=:cd", [("digest", "etl:8OgsN6e+0WY=", 12)]),
    ],
)
def test_an_acl_has_the_syntax_of_zkcli(text, entries):
    assert [(entry.id.scheme, entry.id.id, entry.perms) for entry in acl_of(Security(acl=text))] == entries


@pytest.mark.parametrize("text", ["all", "sasl:etl", "sasl:etl:x", "sasl:etl:r,"])
def test_a_malformed_acl_is_refused(text):
    assert "scheme:id:permissions" in error_of(Security, acl=text)


# -- representations and URLs ------------------------------------------------------------------------------------------


def test_repr_contains_no_secret():
    settings = LockSettings(zk_hosts="a", security=Security(**SASL))
    for text in (repr(settings), str(settings), f"{settings.security}", repr(dataclasses.replace(settings, job="x"))):
        assert SECRET not in text
        assert "'etl'" in text
    assert pickle.loads(pickle.dumps(settings)) == settings  # noqa: S301
    assert hash(settings) != hash(LockSettings(zk_hosts="a"))


def test_credentials_in_host_lists_and_urls_are_refused():
    for url in ("zk://etl:{}@a:2181", "zk://a?password={}", "zk://a?security={}", "http://a?password={}"):
        error_of(LockSettings.from_url, url=url.format(SECRET))
    error_of(LockSettings, zk_hosts=f"etl:{SECRET}@a:2181")
    error_of(LockSettings.from_env, {"SLUICE_ZK_HOSTS": f"etl:{SECRET}@a"})
    # The variable is not read as the field `security` of the settings.
    assert LockSettings.from_env({"SLUICE_ZK_HOSTS": "a", "SLUICE_SECURITY": "x"}).security == Security()


# -- environment and files ---------------------------------------------------------------------------------------------


def test_security_comes_from_the_environment():
    variables = {"SLUICE_ZK_AUTH": "sasl", "SLUICE_ZK_USERNAME": "etl", "SLUICE_ZK_PASSWORD": SECRET}
    assert from_env(**variables, SLUICE_ZK_TLS="1") == Security(**SASL, tls=True)
    assert not from_env(SLUICE_ZK_TLS="off").tls
    environ = {"SLUICE_ZK_HOSTS": "a", "SLUICE_ZK_ACL": "auth::r"}
    assert LockSettings.from_env(environ, job="x").security == Security(acl="auth::r")
    explicit = Security(acl="auth::w")
    assert LockSettings.from_env(environ, security=explicit).security is explicit


def test_security_comes_from_files(tmp_path):
    password, document = tmp_path / "password", tmp_path / "zk.json"
    password.write_text(SECRET + "\n")
    document.write_text(json.dumps({**SASL, "password": "another", "tls": True}))
    password_settings = from_env(SLUICE_ZK_AUTH="sasl", SLUICE_ZK_USERNAME="etl", SLUICE_ZK_PASSWORD_FILE=str(password))
    assert password_settings == Security(**SASL)
    document_settings = from_env(SLUICE_ZK_SECRET_FILE=str(document))
    assert document_settings == Security(**{**SASL, "password": "another"}, tls=True)
    # Variables win over the secret file.
    assert from_env(SLUICE_ZK_SECRET_FILE=str(document), SLUICE_ZK_PASSWORD=SECRET).password == SECRET
    assert from_env(SLUICE_ZK_SECRET_FILE=str(document), SLUICE_ZK_TLS="0").tls is False


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"SLUICE_ZK_TLS": "perhaps"}, "1 or 0"),
        ({"SLUICE_ZK_PASSWORD": ""}, "not empty"),
        # The variable contains the password instead of a path.
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
def test_a_malformed_environment_is_refused(environ, message):
    assert message in error_of(Security.from_env, environ)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SECRET, "is not JSON"),
        (json.dumps(SECRET), "JSON object"),
        (json.dumps({**SASL, "passwd": SECRET}), "unknown key 'passwd'"),
        (json.dumps({**SASL, "password": [SECRET]}), "password must be a text"),
        (json.dumps({"auth": "sasl", "password": SECRET}), "username is not"),
    ],
)
def test_a_malformed_document_is_refused(tmp_path: Path, text, message):
    document = tmp_path / "zk.json"
    document.write_text(text)
    assert message in error_of(from_env, SLUICE_ZK_SECRET_FILE=str(document))


# -- AWS ---------------------------------------------------------------------------------------------------------------


def test_an_aws_secret_is_fetched_once_and_not_logged(aws, caplog):
    arn = aws.create_secret(Name="zk", SecretString=json.dumps(SASL))["ARN"]
    logging.getLogger("botocore.parsers").setLevel(logging.NOTSET)
    caplog.clear()
    caplog.set_level(1)
    settings = LockSettings.from_env({"SLUICE_ZK_HOSTS": "a", "SLUICE_ZK_SECRET": arn})
    assert settings.security == Security(**SASL)
    assert "GetSecretValue" in caplog.text, "debug logging is off, so this test proves nothing"
    assert SECRET not in caplog.text
    # Control: botocore logs the secret in other calls.
    aws.get_secret_value(SecretId=arn)
    assert SECRET in caplog.text
    aws.delete_secret(SecretId=arn, ForceDeleteWithoutRecovery=True)
    assert from_env(SLUICE_ZK_SECRET=arn) == settings.security


def test_an_unusable_aws_secret_is_refused(aws):
    assert "ResourceNotFoundException" in error_of(from_env, SLUICE_ZK_SECRET=MISSING_ARN)
    binary_arn = aws.create_secret(Name="binary", SecretBinary=b"x")["ARN"]
    assert "binary" in error_of(from_env, SLUICE_ZK_SECRET=binary_arn)
    text_arn = aws.create_secret(Name="text", SecretString=SECRET)["ARN"]
    assert f"the secret {text_arn} is not JSON" in error_of(from_env, SLUICE_ZK_SECRET=text_arn)


def test_an_aws_secret_needs_credentials(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    assert "Unable to locate credentials" in error_of(from_env, SLUICE_ZK_SECRET=MISSING_ARN)


def test_an_aws_secret_needs_boto3(monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    assert "pip install '.[aws]' in a clone of Sluice" in error_of(from_env, SLUICE_ZK_SECRET=MISSING_ARN)
