"""The command ``ui``."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from sluice.commands.options import (
    LockRootOption,
    LockUrlOption,
    StorageOption,
    ZooKeeperOption,
    lock_settings,
    parse_pairs,
)
from sluice.interrupts import interruptible


def ui(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE]...", help="Tables to show although they were never locked: s3a://…, file:… or a path."
        ),
    ] = None,
    *,
    zookeeper: ZooKeeperOption = None,
    lock_url: LockUrlOption = None,
    lock_root: LockRootOption = None,
    listen: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Address of the page. From other machines a token is needed."),
    ] = "127.0.0.1:7070",
    prometheus: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Prometheus with the writers' metrics: refusals, lost locks, lag of streams, findings."
        ),
    ] = None,
    report: Annotated[
        str | None,
        typer.Option(metavar="URI", help="Report of maintain.py (its --report), for the storage health of tables."),
    ] = None,
    storage_option: StorageOption = None,
) -> None:
    """Show all tables in the browser: their holders and waiters, with their times.

    The page of a table shows its queue, its last hour, its commits with their
    writers and tokens, and its pins. It reads ZooKeeper (or the locks on S3), the
    logs and Prometheus, takes no lock and changes nothing. It updates itself.

    [bold]sluice ui --zookeeper zk1:2181,zk2:2181,zk3:2181[/]
    [bold]sluice ui --prometheus http://prometheus:9090[/]
    [bold]sluice ui --report s3a://lake/maintenance.json[/]
    [bold]sluice ui --listen 0.0.0.0:7070[/]      for other machines, with a token

    With another address than this machine's own, the printed address has a token
    ($SLUICE_UI_TOKEN, else a new one), without which nothing is shown.

    Exit codes: 1 the address is taken, 2 bad arguments, 130 Ctrl-C.
    """
    from sluice.ui.figures import Prometheus  # noqa: PLC0415
    from sluice.ui.live_state import LiveState  # noqa: PLC0415
    from sluice.ui.pages import Pages  # noqa: PLC0415
    from sluice.ui.server import find_token, make_app, open_socket, page_address, parse_address, serve  # noqa: PLC0415
    from sluice.ui.stored_reports import ReportFile  # noqa: PLC0415

    settings = lock_settings(zookeeper, lock_root, lock_url=lock_url)
    options = parse_pairs(storage_option)
    host, port = parse_address(listen)
    server = None if prometheus is None else Prometheus(prometheus)
    report_file = None if report is None else ReportFile(report, options)
    token = find_token(host, os.environ)
    with (
        interruptible(),
        open_socket(host, port) as listener,
        LiveState(settings, tables or (), options, server, report_file) as state,
    ):
        coordinator = settings.lock_url or settings.zk_hosts
        lock_arguments = {"--zookeeper": zookeeper, "--lock-url": lock_url, "--lock-root": lock_root}
        lock_options = [word for name, value in lock_arguments.items() if value is not None for word in (name, value)]
        pages = Pages(
            state, coordinator, lock_options, has_figures=server is not None, has_report=report_file is not None
        )
        app = make_app(state, pages, token=token)
        print(f"{page_address(host, listener, token)}   (Ctrl-C ends it)", flush=True)
        serve(app, listener, state.stop)
