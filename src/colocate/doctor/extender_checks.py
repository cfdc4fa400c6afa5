"""Asks the extender as kube-scheduler would: with its configuration's address, certificates and timeout."""

import base64
import ssl
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import aiohttp
import msgspec

from colocate.cluster.client import Client
from colocate.cluster.resources import NODES
from colocate.cluster.trouble import in_words, of_our_certificate
from colocate.doctor.check import DoctorSection, Patient, check
from colocate.doctor.report import CheckResult, bad, good, warn
from colocate.errors import UserError
from colocate.load import advised_weight
from colocate.model.figures import count
from colocate.scheduler.kube.configuration import with_token, without_login
from colocate.scheduler.kube.extender import KubeExtender, KubeScheduler, KubeTls
from colocate.scheduler.server.tokens import tokens
from colocate.scheduler.settings import SchedulerConfig

_SLOW = 0.5
"""Fraction of kube-scheduler's timeout from which an answer is slow."""
_POD = {"metadata": {"name": "colocate-doctor", "namespace": "default"}, "spec": {"containers": []}}
"""A pod without a uid: the extender answers and records nothing."""


class _Priority(msgspec.Struct, frozen=True, rename="pascal"):
    host: str
    score: int


def presumed(config: SchedulerConfig) -> KubeScheduler:
    """The extender that `colocate scheduler kube-config` would configure; none if it would not be reachable."""
    if config.server.address.socket is not None:
        return KubeScheduler(())
    encrypted = config.server.tls.certificate is not None
    host, port = config.server.address.host_and_port
    host = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    address = f"{f'[{host}]' if ':' in host else host}:{port}"
    url = _showing(config, f"{'https' if encrypted else 'http'}://{address}")
    settings = KubeExtender(
        url, "prioritize", weight=advised_weight().weight, ignorable=True, enable_https=encrypted
    )
    return KubeScheduler((settings,))


def _showing(config: SchedulerConfig, url: str) -> str:
    """The URL with a token; unchanged if none is needed, or it cannot be read here."""
    file = config.server.token_file
    if file is None:
        return url
    try:
        return with_token(url, tokens(file)[0])
    except UserError:
        return url


def ours(extenders: Iterable[KubeExtender], config: SchedulerConfig) -> list[KubeExtender]:
    """The configured extenders with Colocate's verbs, at its port; if none has that port, at any."""
    alike = [
        one
        for one in extenders
        if not urlsplit(one.url_prefix).path.strip("/")
        and (one.prioritize_verb.strip("/") == "prioritize" or one.filter_verb.strip("/") == "filter")
    ]
    if config.server.address.socket is not None:
        return alike
    _, port = config.server.address.host_and_port
    return [one for one in alike if _port(one.url_prefix) == port] or alike


@check(DoctorSection.LOAD, "extender")
async def extender(patient: Patient) -> AsyncIterator[CheckResult]:
    """The extender answers in time and in a form that Go decodes."""
    assert patient.scheduling is not None
    config = patient.scheduling.config
    kube_scheduler = patient.scheduling.kube_scheduler or presumed(config)
    found = ours(kube_scheduler.extenders, config)
    if not found:
        yield bad(
            "no extender is configured for a kube-scheduler to ask Colocate",
            "set server.address to HOST:PORT; 'colocate scheduler kube-config' prints kube-scheduler's part",
        )
        return
    if config.server.callers.anyone:
        yield warn(
            "server.callers.anyone is true: anyone who can reach the extender may ask it, and make it count pods "
            "that do not exist",
            "remove it, and put the token into urlPrefix, as 'colocate scheduler kube-config' does",
        )
    names = ["colocate-doctor"]
    if isinstance(patient.cluster, Client):
        names = [str(_name(node)) for node in await patient.cluster.list(NODES)] or names
    for settings in found:
        for result in _of_settings(settings, kube_scheduler.least_weight):
            yield result
        if patient.scheduling.kube_scheduler is not None:
            for result in _of_filter(settings, config):
                yield result
        yield await _asked(patient, settings, names)


def _of_settings(settings: KubeExtender, least: int) -> Iterator[CheckResult]:
    where = without_login(settings.url_prefix)
    if settings.filter_verb and not settings.node_cache_capable:
        yield bad(
            f"{where}: it filters whole nodes, so kube-scheduler treats every node as idle",
            "write nodeCacheCapable: true",
        )
    if not settings.ignorable:
        yield warn(f"{where}: pods wait while the extender is away", "write ignorable: true")
    if settings.prioritize_verb and settings.weight < least:
        yield warn(
            f"{where}: with a weight of {settings.weight}, the other score plugins outvote the load of nodes",
            f"write weight: {least}",
        )


def _of_filter(settings: KubeExtender, config: SchedulerConfig) -> Iterator[CheckResult]:
    """Filtering must be enabled on both sides."""
    where, enabled = without_login(settings.url_prefix), config.load.filter.enabled
    if settings.filter_verb and not enabled:
        yield warn(
            f"{where}: kube-scheduler asks it to filter, but it lets every node pass: load.filter.enabled is "
            "false",
            "write load: {filter: {enabled: true}} for the scheduler, or leave filterVerb out",
        )
    if enabled and not settings.filter_verb:
        yield warn(
            f"{where}: load.filter.enabled is true, but kube-scheduler never asks it to filter",
            "write filterVerb: filter, as 'colocate scheduler kube-config --filter' does; or "
            "load.filter.enabled: "
            "false",
        )


async def _asked(patient: Patient, settings: KubeExtender, names: list[str]) -> CheckResult:
    where, patience = without_login(settings.url_prefix), settings.seconds
    remedy = (
        "check that 'colocate scheduler serve' runs, and that kube-scheduler can reach it at this address"
    )
    verb = settings.prioritize_verb or settings.filter_verb
    context = _context(settings.tls, where)
    if isinstance(context, CheckResult):
        return context
    body = msgspec.json.encode({"Pod": _POD, "Nodes": None, "NodeNames": names})
    begun = patient.clock.monotonic()
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=patience)) as session,
            session.post(
                f"{without_login(settings.url_prefix).rstrip('/')}/{verb}",
                data=body,
                headers={"Content-Type": "application/json", **_login(settings.url_prefix)},
                ssl=context,
                server_hostname=settings.tls.server_name or None,
            ) as response,
        ):
            answer = await response.read()
    except TimeoutError:
        return bad(
            f"{where}: no answer within httpTimeout, {patience:g} s, for {count(len(names), 'node')}",
            f"{remedy}; or write a longer httpTimeout",
        )
    except aiohttp.ClientConnectorCertificateError as error:
        return bad(
            f"{where}: cannot be reached: {in_words(error)}",
            "write the authority of its certificate as caFile, or the name in it as serverName, into tlsConfig",
        )
    except (aiohttp.ClientError, OSError) as error:
        if of_our_certificate(error):
            remedy = (
                "give tlsConfig a certificate that server.tls.clientAuthority has signed: certFile, keyFile"
            )
        return bad(f"{where}: cannot be reached: {in_words(error)}", remedy)
    took = patient.clock.monotonic() - begun
    if response.status != 200:
        said = answer.decode(errors="replace").strip()[:300]
        if response.status in (401, 403):
            remedy = (
                "put a token of server.callers.tokenFile into urlPrefix as its password, and give "
                "kube-scheduler the certificate that server.tls asks for; give the file that has both with "
                "--kube-scheduler-config"
            )
        return bad(f"{where}: /{verb} answers {response.status}: {said}", remedy)
    if settings.prioritize_verb:
        try:
            scored = msgspec.json.decode(answer, type=list[_Priority])
        except msgspec.DecodeError as error:
            return bad(f"{where}: kube-scheduler could not read its answer: {error}", remedy)
        if len(scored) != len(names):
            return bad(f"{where}: it scores {len(scored)} of {len(names)} nodes", remedy)
    if took > _SLOW * patience:
        return warn(
            f"{where}: it took {took * 1000:.0f} ms of the {patience:g} s that kube-scheduler waits",
            "give it more CPU, or write a longer httpTimeout",
        )
    return good(
        f"{where} answers for {count(len(names), 'node')} in {took * 1000:.0f} ms; it may take {patience:g} s"
    )


def _name(node: object) -> object:
    metadata = node.get("metadata") if isinstance(node, dict) else None
    return metadata.get("name") if isinstance(metadata, dict) else ""


def _login(url: str) -> dict[str, str]:
    parts = urlsplit(url)
    if parts.username is None and parts.password is None:
        return {}
    pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def _port(url: str) -> int | None:
    try:
        return urlsplit(url).port
    except ValueError:
        return None


def _context(tls: KubeTls, where: str) -> ssl.SSLContext | CheckResult:
    """The TLS settings that kube-scheduler connects with, or a finding about a file that cannot be used."""
    files = {"caFile": tls.ca_file, "certFile": tls.cert_file, "keyFile": tls.key_file}
    named = {called: file for called, file in files.items() if file}
    for called, file in named.items():
        try:
            Path(file).read_bytes()
        except OSError as error:
            return warn(
                f"{where}: cannot read its {called} here: {file}: {in_words(error)}",
                "run the doctor where this path exists: it is a path in kube-scheduler's pod",
            )
    try:
        context = ssl.create_default_context(cafile=tls.ca_file or None)
    except ssl.SSLError as error:
        return _unusable(where, "caFile", tls.ca_file, error)
    if tls.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert_file:
        try:
            # With an empty password an encrypted key raises an error and does not prompt.
            context.load_cert_chain(tls.cert_file, tls.key_file or None, password="")
        except (ssl.SSLError, OSError) as error:
            called = " and ".join(called for called in named if called != "caFile")
            return _unusable(where, called, ", ".join(filter(None, (tls.cert_file, tls.key_file))), error)
    return context


def _unusable(where: str, called: str, files: str, error: OSError) -> CheckResult:
    return bad(
        f"{where}: cannot use its {called}: {files}: {in_words(error)}",
        "certificates must be PEM; a key must be unencrypted and belong to its certificate",
    )
