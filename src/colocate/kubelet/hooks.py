"""Calls a plugin's `open`, `close` and `reload`, and handles their failures.

A failure is logged and counted, and has no other effect. A method that the plugin does not define is not called.
"""

import asyncio
import inspect

from colocate import telemetry
from colocate.aio import deadline
from colocate.clock import Clock
from colocate.crashpoints import reached
from colocate.errors import UserError
from colocate.kubelet.plugin import DevicePlugin
from colocate.kubelet.plugin_calls import Caller
from colocate.kubelet.settings import Settings
from colocate.telemetry import Event


class Hooks:
    """Calls the hooks of one plugin."""

    def __init__(self, plugin: DevicePlugin, caller: Caller, settings: Settings, clock: Clock) -> None:
        self._plugin = plugin
        self._caller = caller
        self._settings = settings
        self._clock = clock
        self._opening: asyncio.Future[None] | None = None
        self._log = telemetry.logger(resource=plugin.resource)

    async def open(self) -> None:
        """Return once the plugin is open. A failed `open` is retried; a UserError is raised."""
        if type(self._plugin).open is DevicePlugin.open:
            return
        pause = self._settings.first_retry
        while True:
            self._log.info(Event.PLUGIN_OPENING)
            reached("plugin.open")
            self._opening = asyncio.ensure_future(self._caller(self._plugin.open))
            try:
                await asyncio.shield(self._opening)
                reached("plugin.opened")
                return
            except UserError:
                raise
            except Exception as error:  # noqa: BLE001 -- the plugin's own code may raise anything
                self._failed("open", error, effect="the plugin does not register yet", retry_in=pause)
            await self._clock.sleep(pause)
            pause = min(2 * pause, self._settings.last_retry)

    async def close(self) -> None:
        """Close an open plugin. A running `open` is cancelled, or awaited if it runs in a thread."""
        if self._opening is None:
            return
        try:
            async with deadline(self._clock, self._settings.close_timeout):
                if inspect.iscoroutinefunction(self._plugin.open):
                    self._opening.cancel()
                await asyncio.wait([self._opening])
                if self._opening.cancelled() or self._opening.exception():
                    return
                if type(self._plugin).close is not DevicePlugin.close:
                    reached("plugin.close")
                    await self._caller(self._plugin.close)
                    reached("plugin.closed")
        except Exception as error:  # noqa: BLE001 -- the plugin's own code may raise anything
            self._failed("close", error)

    async def reload(self) -> None:
        """Let the plugin read its configuration again."""
        if type(self._plugin).reload is DevicePlugin.reload:
            return
        try:
            async with deadline(self._clock, self._settings.allocate_timeout):
                await self._caller(self._plugin.reload)
        except Exception as error:  # noqa: BLE001 -- the plugin's own code may raise anything
            self._failed("reload", error)

    def _failed(self, method: str, error: Exception, **details: str | float) -> None:
        telemetry.PLUGIN_ERRORS.labels(self._plugin.resource, method).inc()
        late = isinstance(error, TimeoutError) and not str(error)
        reason = "it did not end in time" if late else f"{type(error).__name__}: {error}"
        self._log.error(Event.PLUGIN_CALL_FAILED, method=method, reason=reason, **details)
