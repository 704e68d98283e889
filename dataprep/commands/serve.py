"""The command serve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dataprep.commands.app import app, note, print_lines


@app.command()
def serve(
    context: typer.Context,
    jobs: Annotated[
        Path | None, typer.Option("--jobs", metavar="DIR", help="Folder of jobs: run them when due.")
    ] = None,
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Output folders to show. Default: those of the jobs, or data."
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Name or address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: a free one.")] = 8642,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="Whoever comes needs the token in it.")
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Show, and change and start nothing.")] = False,
    allow: Annotated[
        list[Path] | None,
        typer.Option(
            "--allow",
            metavar="DIR",
            help="Folders that jobs may name files in, beside --output and the folder that --jobs lies in.",
        ),
    ] = None,
) -> None:
    """Show runs, jobs and datasets on pages, and run jobs when they are due. Needs: pip install 'dataprep-llm[serve]'.

    Only this machine can reach it, unless --host says otherwise; then a token is needed, from --token-file or
    DATAPREP_TOKEN. The first line on stdout is the address. Any number of servers may show the same folders.

    Example: dataprep serve --output /shared/data
    Example: dataprep serve --jobs jobs --host 0.0.0.0 --token-file /etc/dataprep.token
    """
    import contextlib
    import logging
    import sys
    import threading

    from dataprep.errors import SpecError
    from dataprep.service.daemon import Daemon
    from dataprep.service.jobs import load_jobs
    from dataprep.service.places import around

    try:
        from dataprep.service.web.app import create_app
        from dataprep.service.web.server import bind, make_server
        from dataprep.service.web.settings import Settings, read_token
    except ModuleNotFoundError as error:
        raise SpecError(f"serve needs {error.name}; run: pip install 'dataprep-llm[serve]'") from error

    settings = Settings(
        outputs=tuple(output or ([] if jobs is not None else [Path("data")])),
        jobs=jobs,
        host=host,
        port=port,
        token=read_token(token_file),
        read_only=read_only,
        allowed=(*(allow or ()), *(around(jobs) if jobs is not None else ())),
    )
    if jobs is not None:
        load_jobs(jobs)  # that there is such a folder
    sockets = bind(settings)
    name = f"[{host}]" if ":" in host else host
    print_lines([f"http://{name}:{sockets[0].getsockname()[1]}/"])
    if not context.obj["quiet"]:
        note("" if settings.token else "no token: whoever is on this machine may use it", "Ctrl-C stops it")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    sys.setswitchinterval(0.001)  # threads that make pages hand over to the one that answers, in time
    with contextlib.ExitStack() as stack:
        launch = None
        if jobs is not None and not read_only:
            daemon, stop = Daemon(jobs, (*settings.allowed, *settings.outputs)), threading.Event()
            threading.Thread(target=daemon.run, args=(stop,), name="daemon", daemon=True).start()
            stack.callback(stop.set)
            launch = daemon.launch
        stack.enter_context(contextlib.suppress(KeyboardInterrupt))  # as uvicorn hands signals on once it has stopped
        make_server(create_app(settings, launch)).run(sockets)
