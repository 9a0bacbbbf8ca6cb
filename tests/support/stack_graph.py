"""Runs the Pulumi program under mocks, and returns every resource with its inputs and options: no AWS, no command line.

    python tests/support/stack_graph.py < runs.json > graphs.json

The mocks answer as AWS would where the program looks at the answer, and keys and certificates are real ones, made from
what the program asks for: an ensemble can be started with them.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import gc
import hashlib
import ipaddress
import json
import os
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any, TypedDict

import pulumi
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

ACCOUNT, REGION, STACK = "123456789012", "eu-central-1", "test"
OPTIONS = ("protect", "delete_before_replace", "ignore_changes", "retain_on_delete")
#: How a secret is marked on its way to Pulumi's engine, which encrypts it in the state.
SECRET = "4dabf18193072939515e22adb298388d"  # noqa: S105
_USES = {"server_auth": ExtendedKeyUsageOID.SERVER_AUTH, "client_auth": ExtendedKeyUsageOID.CLIENT_AUTH}


class Run(TypedDict):
    """What to run.

    Attributes:
        infra: folder of the program.
        config: of the stack, beside ``Pulumi.yaml``'s defaults.
        addresses: of the members' interfaces.
        preview: whether nothing that AWS would say is known yet.

    """

    infra: str
    config: dict[str, Any]
    addresses: list[str]
    preview: bool


class Cloud(pulumi.runtime.Mocks):
    """AWS and the TLS provider, as far as the program looks.

    Args:
        addresses: of the network interfaces, in the order of their names.
        preview: whether resources have no ids and no outputs yet.

    """

    def __init__(self, addresses: list[str], *, preview: bool) -> None:
        self.resources: list[dict[str, Any]] = []
        self._addresses = addresses
        self._preview = preview

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        name, inputs = args.name, {key: _plain(value) for key, value in args.inputs.items()}
        state = dict(inputs)
        kind = args.typ.split(":")[-1]
        if self._preview:
            self.resources.append({"type": args.typ, "name": name, "inputs": inputs, "secret": []})
            return None, {}
        if args.typ.startswith("tls:"):
            state |= _tls(kind, name, inputs)
        elif args.typ.startswith("aws:"):
            state |= self._aws(kind, name, inputs)
        secret = sorted(key for key, value in args.inputs.items() if SECRET in json.dumps(value, default=str))
        self.resources.append({"type": args.typ, "name": name, "inputs": inputs, "secret": secret})
        return f"{name}-id" if kind != "Volume" else f"vol-{abs(hash(name)):017x}"[:21], state

    def _aws(self, kind: str, name: str, inputs: dict[str, Any]) -> dict[str, Any]:
        here = f"{REGION}:{ACCOUNT}"
        service = {
            "Bucket": "s3:::",
            "Role": f"iam::{ACCOUNT}:role/",
            "Policy": f"iam::{ACCOUNT}:policy/",
            "Secret": f"secretsmanager:{here}:secret:",
            "Parameter": f"ssm:{here}:parameter",
            "LogGroup": f"logs:{here}:log-group:",
            "Key": f"kms:{here}:key/",
        }.get(kind, f"{kind.lower()}:{here}:")
        state: dict[str, Any] = {"arn": f"arn:aws:{service}{inputs.get('name') or name}"}
        if kind == "Bucket":
            state["bucket"] = name
        if kind == "NetworkInterface":
            state["privateIp"] = self._addresses[int(name.rpartition("-")[2]) - 1]
        if kind == "VpcEndpoint":
            state["prefixListId"] = "pl-1"
        if "name" not in inputs:
            state["name"] = name
        return state

    def call(self, args: pulumi.runtime.MockCallArgs) -> dict[str, Any]:
        known: dict[str, dict[str, Any]] = {
            "aws:index/getCallerIdentity:getCallerIdentity": {"accountId": ACCOUNT, "arn": "", "id": "", "userId": ""},
            "aws:index/getPartition:getPartition": {"partition": "aws", "id": "aws"},
            "aws:index/getRegion:getRegion": {"region": REGION, "id": REGION},
            "aws:index/getAvailabilityZones:getAvailabilityZones": {
                "names": [f"{REGION}{letter}" for letter in "dcab"], "id": REGION,
            },
            "aws:ssm/getParameter:getParameter": {"value": "ami-1", "id": "p"},
            "aws:ec2/getSubnet:getSubnet": {"availabilityZone": f"zone-of-{args.args.get('id')}", "id": "s"},
        }  # fmt: skip
        return known[args.token]


def _plain(value: Any) -> Any:
    """Return a value without the marks of its secrets."""
    if isinstance(value, dict):
        return _plain(value["value"]) if SECRET in value else {key: _plain(each) for key, each in value.items()}
    if isinstance(value, pulumi.RemoteAsset | pulumi.FileAsset):
        return {"asset": type(value).__name__, "of": getattr(value, "uri", None) or value.path}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _tls(kind: str, name: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """Do what the TLS provider does; but a key of the same name is the same key in each run, as in a stack's state."""
    if kind == "PrivateKey":
        assert (inputs["algorithm"], inputs["ecdsaCurve"]) == ("ECDSA", "P256")
        key = ec.derive_private_key(int.from_bytes(hashlib.sha256(name.encode()).digest()[:30]), ec.SECP256R1())
        return {
            "privateKeyPem": _key_pem(key, serialization.PrivateFormat.TraditionalOpenSSL),
            "privateKeyPemPkcs8": _key_pem(key, serialization.PrivateFormat.PKCS8),
        }
    if kind == "SelfSignedCert":
        assert inputs["isCaCertificate"] is True
        key = _key(inputs["privateKeyPem"])
        name = _name(inputs["subject"])
        made = _builder(name, name, key.public_key(), inputs["validityPeriodHours"]).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        return {"certPem": _signed(made, key)}
    if kind == "CertRequest":
        builder = x509.CertificateSigningRequestBuilder().subject_name(_name(inputs["subject"]))
        addresses = [x509.IPAddress(ipaddress.ip_address(each)) for each in inputs.get("ipAddresses") or ()]
        if addresses:
            builder = builder.add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        request = builder.sign(_key(inputs["privateKeyPem"]), hashes.SHA256())
        return {"certRequestPem": request.public_bytes(serialization.Encoding.PEM).decode()}
    assert kind == "LocallySignedCert"
    request = x509.load_pem_x509_csr(inputs["certRequestPem"].encode())
    authority = x509.load_pem_x509_certificate(inputs["caCertPem"].encode())
    builder = _builder(request.subject, authority.subject, request.public_key(), inputs["validityPeriodHours"])
    for extension in request.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    uses = [_USES[each] for each in inputs["allowedUses"] if each in _USES]
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    return {"certPem": _signed(builder, _key(inputs["caPrivateKeyPem"])), "readyForRenewal": False}


def _key(pem: str) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem.encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def _key_pem(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> str:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def _name(subject: dict[str, str]) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject["commonName"])])


def _builder(subject: x509.Name, issuer: x509.Name, key: Any, hours: float) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + dt.timedelta(hours=hours))
    )


def _signed(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> str:
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def graph_of(run: Run) -> dict[str, Any]:
    """Run the program once in this process; return its resources and its outputs."""
    infra = Path(run["infra"]).resolve()
    sys.path.insert(0, str(infra))
    cloud = Cloud(run["addresses"], preview=run["preview"])
    told = defaults_of(infra.parent / "Pulumi.yaml") | run["config"]
    # One loop for all: the mocks make the stack at once, and its outputs belong to the loop that there is.
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    pulumi.runtime.set_mocks(cloud, project="sluice", stack=STACK, preview=run["preview"])
    pulumi.runtime.set_all_config({f"sluice:{key}": _as_text(value) for key, value in told.items()})
    options: dict[tuple[str, str], dict[str, Any]] = {}
    known: dict[str, Any] = {}

    def note(args: pulumi.ResourceTransformationArgs) -> None:
        told = {name: getattr(args.opts, name) for name in OPTIONS}
        # What comes first: a machine's user data runs once, whether the way to AWS is there or not.
        told["depends_on"] = sorted(f"{type(each).__name__} {each._name}" for each in args.opts.depends_on or ())
        options[args.type_, args.name] = told

    async def program() -> None:
        # Last, so that it sees what the program's own transformation made of it.
        pulumi.runtime.register_stack_transformation(note)
        runpy.run_path(str(infra / "__main__.py"), run_name="__main__")

    async def outputs() -> None:
        told = pulumi.Output.all(**pulumi.runtime.get_root_resource().outputs)
        known.update(await told.future(with_unknowns=True))

    loop.run_until_complete(pulumi.runtime.stack.run_pulumi_func(program))
    loop.run_until_complete(outputs())
    for resource in cloud.resources:
        resource["options"] = options.get((resource["type"], resource["name"]), {})
    return {"resources": cloud.resources, "outputs": known}


def defaults_of(file: Path) -> dict[str, Any]:
    """Return the defaults of a project's configuration."""
    import yaml

    declared = yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader)["config"]
    return {key: each["default"] for key, each in declared.items() if "default" in each}


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def graphs_of(runs: list[Run]) -> list[dict[str, Any]]:
    """Run the program once for each, in a child process that has the big libraries already; a failure is ``error``."""
    import pulumi_aws
    import pulumi_tls

    # A module is loaded when something of it is asked for.
    for service in ("cloudwatch", "ebs", "ec2", "iam", "kms", "s3", "secretsmanager", "ssm", "vpc"):
        getattr(getattr(pulumi_aws, service), "loaded", None)
    getattr(pulumi_tls, "loaded", None)
    # A collection in a child would copy all of these libraries, page by page.
    gc.freeze()
    gc.disable()
    return [_in_child(run) for run in runs]


def _in_child(run: Run) -> dict[str, Any]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        with os.fdopen(writing, "w") as answer:
            try:
                found = graph_of(run)
            except BaseException as error:  # (what is wrong with a configuration is an answer)
                found = {"error": f"{type(error).__name__}: {error}"}
            json.dump(found, answer, default=str)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        found = json.load(answer)
    os.waitpid(pid, 0)
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    json.dump(graphs_of(json.load(sys.stdin)), sys.stdout)
