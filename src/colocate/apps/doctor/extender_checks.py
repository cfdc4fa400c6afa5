"""The extender, asked as kube-scheduler would: by its configuration's address, certificates and patience."""

import base64
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

import aiohttp
import msgspec

from colocate.apps.doctor.check import Patient, Section, check
from colocate.apps.doctor.report import Result, bad, good, warn
from colocate.apps.scheduler.kube_extender import ExtenderSettings, Tls
from colocate.apps.scheduler.settings import SchedulerConfig
from colocate.cluster.client import Client
from colocate.cluster.resources import NODES
from colocate.load.weights import weight

_SLOW = 0.5
"""Of the time that kube-scheduler waits."""
_POD = {"metadata": {"name": "colocate-doctor", "namespace": "default"}, "spec": {"containers": []}}
"""Without a uid: whoever only asks leaves no trace."""


class _Priority(msgspec.Struct, frozen=True, rename="pascal"):
    host: str
    score: int


def ours(config: SchedulerConfig) -> ExtenderSettings | None:
    """The extender as `colocate scheduler kube-config` would have it; None where no kube-scheduler can reach it."""
    if config.server.address.socket is not None:
        return None
    scheme = "https" if config.server.tls.certificate else "http"
    host, port = config.server.address.host_and_port
    host = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    shown = f"[{host}]" if ":" in host else host
    return ExtenderSettings(f"{scheme}://{shown}:{port}", "prioritize", weight=weight().weight)


@check(Section.LOAD, "extender")
async def extender(patient: Patient) -> AsyncIterator[Result]:
    """It is reached, and answers in time and in a form that Go decodes."""
    assert patient.scheduling is not None
    found = patient.scheduling.extenders
    if found is None:
        alone = ours(patient.scheduling.config)
        found = (alone,) if alone is not None else ()
    if not found:
        yield bad(
            "no extender is configured that a kube-scheduler could ask",
            "let it listen on HOST:PORT (server.address); 'colocate scheduler kube-config' prints the other part",
        )
        return
    names = ["colocate-doctor"]
    if isinstance(patient.cluster, Client):
        names = [str(_name(node)) for node in await patient.cluster.list(NODES)] or names
    for settings in found:
        for result in _of_settings(settings):
            yield result
        yield await _asked(patient, settings, names)


def _of_settings(settings: ExtenderSettings) -> Iterator[Result]:
    where = _plain(settings.url_prefix)
    if settings.filter_verb and not settings.node_cache_capable:
        yield bad(
            f"{where}: it filters and is sent whole nodes, by which kube-scheduler takes every node for idle",
            "write nodeCacheCapable: true",
        )
    if not settings.ignorable:
        yield warn(f"{where}: pods wait while it is away", "write ignorable: true")
    least = weight().weight
    if settings.prioritize_verb and settings.weight < least:
        yield warn(
            f"{where}: with a weight of {settings.weight}, a node that is 50 points hotter may still win",
            f"write weight: {least}, unless score plugins of kube-scheduler are switched off",
        )


async def _asked(patient: Patient, settings: ExtenderSettings, names: list[str]) -> Result:
    where, patience = _plain(settings.url_prefix), settings.seconds
    remedy = "see that 'colocate scheduler serve' runs, and that this address leads to it from kube-scheduler's place"
    verb = settings.prioritize_verb or settings.filter_verb
    body = msgspec.json.encode({"Pod": _POD, "Nodes": None, "NodeNames": names})
    begun = patient.clock.monotonic()
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=patience)) as session,
            session.post(
                f"{_plain(settings.url_prefix).rstrip('/')}/{verb}",
                data=body,
                headers={"Content-Type": "application/json", **_login(settings.url_prefix)},
                ssl=_context(settings.tls_config) or True,
                server_hostname=(settings.tls_config.server_name or None) if settings.tls_config else None,
            ) as response,
        ):
            answer = await response.read()
    except TimeoutError:
        return bad(
            f"{where}: no answer within httpTimeout, {patience:g} s, for {len(names)} nodes",
            f"{remedy}; or write a longer httpTimeout",
        )
    except (aiohttp.ClientError, OSError) as error:
        return bad(f"{where}: it cannot be asked ({error})", remedy)
    took = patient.clock.monotonic() - begun
    if response.status != 200:
        said = answer.decode(errors="replace").strip()[:300]
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
        f"{where} answers for {len(names)} nodes in {took * 1000:.0f} ms, and may take {patience:g} s"
    )


def _name(node: object) -> object:
    metadata = node.get("metadata") if isinstance(node, dict) else None
    return metadata.get("name") if isinstance(metadata, dict) else ""


def _plain(url: str) -> str:
    """Without the password that it may have."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _login(url: str) -> dict[str, str]:
    parts = urlsplit(url)
    if parts.username is None and parts.password is None:
        return {}
    pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def _context(tls: Tls | None) -> ssl.SSLContext | None:
    if tls is None:
        return None
    context = ssl.create_default_context(cafile=str(Path(tls.ca_file)) if tls.ca_file else None)
    if tls.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert_file:
        context.load_cert_chain(tls.cert_file, tls.key_file or None)
    return context
