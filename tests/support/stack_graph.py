"""Run the Pulumi program under mocks, without AWS; return every resource with its inputs and options.

    python -m tests.support.stack_graph < runs.json > graphs.json

The mocks return the outputs of AWS that the program uses. Keys and certificates are real, so that an ensemble can
start with them.
"""

from __future__ import annotations

import asyncio
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
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.support.authority import certificate_builder, certificate_pem, distinguished_name

ACCOUNT, REGION, STACK = "123456789012", "eu-central-1", "test"
OPTIONS = ("protect", "delete_before_replace", "ignore_changes", "retain_on_delete")
#: Pulumi's marker of a secret value, which the engine encrypts in the state.
SECRET = "4dabf18193072939515e22adb298388d"  # noqa: S105
_USES = {"server_auth": ExtendedKeyUsageOID.SERVER_AUTH, "client_auth": ExtendedKeyUsageOID.CLIENT_AUTH}


class Run(TypedDict):
    """A run of the program.

    Attributes:
        infra: Folder of the program.
        config: Configuration of the stack, in addition to the defaults of ``Pulumi.yaml``.
        addresses: Addresses of the members' interfaces.
        preview: Whether the outputs of AWS are unknown.

    """

    infra: str
    config: dict[str, Any]
    addresses: list[str]
    preview: bool


class Cloud(pulumi.runtime.Mocks):
    """Mocks of AWS and the TLS provider, with the outputs that the program uses. In a preview they have no outputs."""

    def __init__(self, addresses: list[str], *, preview: bool) -> None:
        self.resources: list[dict[str, Any]] = []
        self._addresses = addresses
        self._preview = preview

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        name, kind = args.name, args.typ.split(":")[-1]
        inputs = {key: _unwrap_secrets(value) for key, value in args.inputs.items()}
        secrets = [key for key, value in args.inputs.items() if isinstance(value, dict) and SECRET in value]
        self.resources.append({"type": args.typ, "name": name, "inputs": inputs, "secrets": secrets})
        if self._preview:
            return None, {}
        state = dict(inputs)
        if args.typ.startswith("tls:"):
            state |= _tls(kind, name, inputs)
        elif args.typ.startswith("aws:"):
            state |= self._aws(kind, name, inputs)
        return f"{name}-id" if kind != "Volume" else f"vol-{abs(hash(name)):017x}"[:21], state

    def _aws(self, kind: str, name: str, inputs: dict[str, Any]) -> dict[str, Any]:
        scope = f"{REGION}:{ACCOUNT}"
        service = {
            "Bucket": "s3:::",
            "Role": f"iam::{ACCOUNT}:role/",
            "Policy": f"iam::{ACCOUNT}:policy/",
            "Secret": f"secretsmanager:{scope}:secret:",
            "Parameter": f"ssm:{scope}:parameter",
            "LogGroup": f"logs:{scope}:log-group:",
            "Key": f"kms:{scope}:key/",
        }.get(kind, f"{kind.lower()}:{scope}:")
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
        results: dict[str, dict[str, Any]] = {
            "aws:index/getCallerIdentity:getCallerIdentity": {"accountId": ACCOUNT, "arn": "", "id": "", "userId": ""},
            "aws:index/getPartition:getPartition": {"partition": "aws", "id": "aws"},
            "aws:index/getRegion:getRegion": {"region": REGION, "id": REGION},
            "aws:index/getAvailabilityZones:getAvailabilityZones": {
                "names": [f"{REGION}{letter}" for letter in "dcab"], "id": REGION,
            },
            "aws:ssm/getParameter:getParameter": {"value": "ami-1", "id": "p"},
            "aws:ec2/getSubnet:getSubnet": {"availabilityZone": f"zone-of-{args.args.get('id')}", "id": "s"},
        }  # fmt: skip
        return results[args.token]


def _unwrap_secrets(value: Any) -> Any:
    """Return a value without the markers of secrets."""
    if isinstance(value, dict):
        return (
            _unwrap_secrets(value["value"])
            if SECRET in value
            else {key: _unwrap_secrets(item) for key, item in value.items()}
        )
    if isinstance(value, pulumi.RemoteAsset | pulumi.FileAsset):
        return {"asset": type(value).__name__, "path": getattr(value, "uri", None) or value.path}
    return [_unwrap_secrets(item) for item in value] if isinstance(value, list) else value


def _tls(kind: str, name: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the outputs of the TLS provider. Equal names give equal keys, as in the state of a stack."""
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
        subject = distinguished_name(inputs["subject"]["commonName"])
        builder = certificate_builder(subject, subject, key.public_key(), hours=inputs["validityPeriodHours"])
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        return {"certPem": _sign(builder, key)}
    if kind == "CertRequest":
        subject = distinguished_name(inputs["subject"]["commonName"])
        request_builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
        addresses = [x509.IPAddress(ipaddress.ip_address(text)) for text in inputs.get("ipAddresses") or ()]
        if addresses:
            request_builder = request_builder.add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        request = request_builder.sign(_key(inputs["privateKeyPem"]), hashes.SHA256())
        return {"certRequestPem": request.public_bytes(serialization.Encoding.PEM).decode()}
    assert kind == "LocallySignedCert"
    request = x509.load_pem_x509_csr(inputs["certRequestPem"].encode())
    authority = x509.load_pem_x509_certificate(inputs["caCertPem"].encode())
    hours = inputs["validityPeriodHours"]
    builder = certificate_builder(request.subject, authority.subject, request.public_key(), hours=hours)
    for extension in request.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    uses = [_USES[use] for use in inputs["allowedUses"] if use in _USES]
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    return {"certPem": _sign(builder, _key(inputs["caPrivateKeyPem"])), "readyForRenewal": False}


def _key(pem: str) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem.encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def _key_pem(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> str:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def _sign(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> str:
    return certificate_pem(builder.sign(key, hashes.SHA256())).decode()


def build_graph(run: Run) -> dict[str, Any]:
    """Run the program in this process; return its resources and its outputs."""
    infra = Path(run["infra"]).resolve()
    sys.path.insert(0, str(infra))
    cloud = Cloud(run["addresses"], preview=run["preview"])
    config = default_config(infra.parent / "Pulumi.yaml") | run["config"]
    # The mocks create the stack at once, and its outputs belong to the current event loop.
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    pulumi.runtime.set_mocks(cloud, project="sluice", stack=STACK, preview=run["preview"])
    pulumi.runtime.set_all_config({f"sluice:{key}": _as_text(value) for key, value in config.items()})
    options: dict[tuple[str, str], dict[str, Any]] = {}
    stack_outputs: dict[str, Any] = {}

    def record_options(args: pulumi.ResourceTransformationArgs) -> None:
        resource_options = {name: getattr(args.opts, name) for name in OPTIONS}
        dependencies = [f"{type(resource).__name__} {resource._name}" for resource in args.opts.depends_on or ()]
        resource_options["depends_on"] = sorted(dependencies)
        options[args.type_, args.name] = resource_options

    async def program() -> None:
        # A stack transformation gets only the resources that are created after its registration.
        pulumi.runtime.register_stack_transformation(record_options)
        runpy.run_path(str(infra / "__main__.py"), run_name="__main__")

    async def read_outputs() -> None:
        outputs = pulumi.Output.all(**pulumi.runtime.get_root_resource().outputs)
        stack_outputs.update(await outputs.future(with_unknowns=True))

    loop.run_until_complete(pulumi.runtime.stack.run_pulumi_func(program))
    loop.run_until_complete(read_outputs())
    for resource in cloud.resources:
        resource["options"] = options.get((resource["type"], resource["name"]), {})
    return {"resources": cloud.resources, "outputs": stack_outputs}


def default_config(file: Path) -> dict[str, Any]:
    """Return the default configuration of a project."""
    import yaml

    declarations = yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader)["config"]
    return {key: entry["default"] for key, entry in declarations.items() if "default" in entry}


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def build_graphs(runs: list[Run]) -> list[dict[str, Any]]:
    """Run the program for each run in a forked process, which shares the imports; report failures as ``error``."""
    import pulumi_aws
    import pulumi_tls

    # The packages load a module when its attribute is first accessed.
    for service in ("cloudwatch", "ebs", "ec2", "iam", "kms", "s3", "secretsmanager", "ssm", "vpc"):
        getattr(getattr(pulumi_aws, service), "loaded", None)
    getattr(pulumi_tls, "loaded", None)
    # A garbage collection in a child would copy the pages of these libraries.
    gc.freeze()
    gc.disable()
    return [_in_child(run) for run in runs]


def _in_child(run: Run) -> dict[str, Any]:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        with os.fdopen(write_end, "w") as pipe:
            try:
                result = build_graph(run)
            except BaseException as error:  # Tests read the errors of invalid configurations.
                result = {"error": f"{type(error).__name__}: {error}"}
            json.dump(result, pipe, default=str)
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        result = json.load(pipe)
    os.waitpid(pid, 0)
    return dict(result)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    json.dump(build_graphs(json.load(sys.stdin)), sys.stdout)
