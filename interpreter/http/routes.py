"""The whole API on one page: each path, its methods, what they take and give, and which errors they have.

The application and the OpenAPI document are both made from ``ROUTES``.
"""

from __future__ import annotations

from tornado.web import Application

from interpreter import errors, wire, wire_files, wire_scopes
from interpreter.files import errors as file_errors
from interpreter.http import events, executions, files, health, kernels, metrics, openapi, outputs, scopes, websocket
from interpreter.http import exec as exec_
from interpreter.http.base import ApiHandler, log_request
from interpreter.http.errors import RangeNotSatisfiable
from interpreter.http.operations import Api, Operation, Route

_STARTING = (errors.RuntimeUnavailable, errors.SandboxStartFailed, errors.SingleTenant, errors.TooManySessions)
_KERNEL = {"scope": "u1", "language": "python", "session": "chatA"}
_FILE = {"scope": "u1", "path": "data/in.csv", "session": "chatA"}
_REFUSED = (
    file_errors.NoSuchFile,
    file_errors.OutsideDirectory,
    file_errors.NotARegularFile,
    file_errors.NotPermitted,
    file_errors.FileBusy,
)
_STORING = (
    *_REFUSED,
    file_errors.FileExists,
    file_errors.PreconditionFailed,
    file_errors.TooManyUploads,
    errors.SingleTenant,
    errors.StorageFailed,
    errors.QuotaExceeded,
)
_WRITING = (
    file_errors.OutsideDirectory,
    file_errors.NotPermitted,
    file_errors.FileExists,
    file_errors.FileBusy,
)
_ONE = {"execution_id": "run-1", "scope": "u1"}

ROUTES: tuple[Route, ...] = (
    Route(
        "/v1/exec",
        exec_.ExecHandler,
        {
            "POST": Operation(
                "Run code; answers when it has ended, or with its events where Accept is text/event-stream. Leaving before "
                "cancels it, unless execution_id is given or events are sent.",
                answer=wire.ExecAnswer,
                body=wire.ExecBody,
                errors=(
                    errors.UnknownLanguage,
                    errors.UnsupportedField,
                    errors.CwdNotFound,
                    errors.CodeTooLarge,
                    errors.ExecutionIdTaken,
                    errors.QueueFull,
                    errors.QueueTimeout,
                    errors.TooManyExecutions,
                    errors.TooManyKernels,
                    errors.KernelStartFailed,
                    errors.RunStartFailed,
                    errors.StorageFailed,
                    *_WRITING,
                    *_STARTING,
                ),
                example={
                    "scope": "u1",
                    "session": "chatA",
                    "language": "python",
                    "code": "x = 41\nx + 1",
                    "timeout": 30,
                    "env": {"FOO": "bar"},
                    "stateful": True,
                    "context": "default",
                },
            )
        },
    ),
    Route(
        "/v1/executions/{execution_id}",
        executions.ExecutionHandler,
        {
            "GET": Operation(
                "Look at an execution, while it runs and for SANDBOX_RESULT_TTL after.",
                answer=wire.ExecutionView,
                query=wire.ExecutionQuery,
                errors=(
                    errors.ExecutionNotFound,
                    errors.CwdNotFound,
                    errors.QueueTimeout,
                    errors.SandboxStartFailed,
                    errors.KernelStartFailed,
                ),
                example={"execution_id": "run-1", "scope": "u1"},
                while_draining=True,
            ),
            "DELETE": Operation(
                "End an execution: interrupt it (stateful) or kill it (stateless). Answers at once, with where it is.",
                answer=wire.ExecutionView,
                query=wire.ExecutionQuery,
                errors=(errors.ExecutionNotFound,),
                example={"execution_id": "run-1", "scope": "u1"},
                while_draining=True,
            ),
        },
    ),
    Route(
        "/v1/executions/{execution_id}/events",
        events.EventsHandler,
        {
            "GET": Operation(
                "Follow an execution: its events as server-sent events, from `after` or Last-Event-ID on, to the end.",
                media="text/event-stream",
                query=wire.EventsQuery,
                errors=(errors.ExecutionNotFound,),
                example=_ONE,
                while_draining=True,
            )
        },
    ),
    Route(
        "/v1/executions/{execution_id}/stdout",
        outputs.StdoutHandler,
        {
            "GET": Operation(
                "All that an execution wrote to stdout until now, up to SANDBOX_MAX_SPILL_MB; ranges are honoured.",
                media="text/plain",
                query=wire.ExecutionQuery,
                errors=(errors.ExecutionNotFound, RangeNotSatisfiable),
                example=_ONE,
                while_draining=True,
            )
        },
    ),
    Route(
        "/v1/executions/{execution_id}/stderr",
        outputs.StderrHandler,
        {
            "GET": Operation(
                "The same of stderr.",
                media="text/plain",
                query=wire.ExecutionQuery,
                errors=(errors.ExecutionNotFound, RangeNotSatisfiable),
                example=_ONE,
                while_draining=True,
            )
        },
    ),
    Route(
        "/v1/executions/{execution_id}/input",
        executions.InputHandler,
        {
            "POST": Operation(
                "Answer the `input_request` of an execution.",
                answer=wire.Accepted,
                query=wire.ExecutionQuery,
                body=wire.InputBody,
                errors=(errors.ExecutionNotFound, errors.NoInputRequested),
                example=_ONE | {"text": "yes"},
                while_draining=True,
            )
        },
    ),
    Route(
        "/v1/ws",
        websocket.WebSocketHandler,
        {
            "GET": Operation(
                "Open a WebSocket: run, follow, feed and interrupt executions of one session.",
                upgrade=True,
                query=wire.SocketQuery,
                example={"scope": "u1", "session": "chatA"},
            )
        },
    ),
    Route(
        "/v1/kernels/{scope}",
        kernels.KernelsHandler,
        {
            "GET": Operation(
                "List the kernels of a sandbox.",
                answer=wire.KernelList,
                query=wire.SessionQuery,
                example={"scope": "u1", "session": "chatA"},
            )
        },
    ),
    Route(
        "/v1/kernels/{scope}/{language}",
        kernels.KernelHandler,
        {
            "DELETE": Operation(
                "End a kernel; what runs in it ends as cancelled.",
                answer=wire.Removed,
                query=wire.KernelQuery,
                errors=(errors.KernelNotFound,),
                example=_KERNEL,
            )
        },
    ),
    Route(
        "/v1/kernels/{scope}/{language}/interrupt",
        kernels.InterruptHandler,
        {
            "POST": Operation(
                "Interrupt what runs in a kernel; its variables stay.",
                answer=wire.Interrupted,
                query=wire.KernelQuery,
                errors=(errors.KernelNotFound,),
                example=_KERNEL,
            )
        },
    ),
    Route(
        "/v1/kernels/{scope}/{language}/restart",
        kernels.RestartHandler,
        {
            "POST": Operation(
                "Restart a kernel; what runs in it ends as cancelled, its variables are gone.",
                answer=wire.Restarted,
                query=wire.KernelQuery,
                errors=(errors.KernelNotFound,),
                example=_KERNEL,
            )
        },
    ),
    Route(
        "/v1/files/{scope}",
        files.FilesHandler,
        {
            "POST": Operation(
                "Store the parts of the body as files, whose paths are their filenames: all of them or none.",
                answer=wire_files.StoredFiles,
                takes="multipart/form-data",
                query=wire_files.FileQuery,
                errors=_STORING,
                example={"scope": "u1", "session": "chatA"},
            )
        },
        hint=" The directory itself has a slash at the end of its path.",
    ),
    Route(
        "/v1/files/{scope}/{path}",
        files.FileHandler,
        {
            "GET": Operation(
                "Send a file, as an attachment, with ranges and conditions as in RFC 9110; or list a directory, or send it as "
                "an archive.",
                answer=wire_files.Listing,
                media="application/octet-stream",
                query=wire_files.ListingQuery,
                errors=(
                    *_REFUSED,
                    file_errors.PreconditionFailed,
                    RangeNotSatisfiable,
                    file_errors.TooManyArchives,
                ),
                example={"scope": "u1", "path": "data", "session": "chatA"},
            ),
            "PUT": Operation(
                "Store the body as a file: 201 if it is new, 200 if it took the place of another. All of it or nothing.",
                answer=wire_files.StoredFile,
                takes="application/octet-stream",
                query=wire_files.FileQuery,
                errors=_STORING,
                example=_FILE,
            ),
            "POST": Operation(
                "Make a directory, or move, copy or change the mode of a file or directory, as `op` says.",
                answer=wire_files.Changed,
                query=wire_files.ChangeQuery,
                errors=(
                    *_REFUSED,
                    file_errors.FileExists,
                    errors.SingleTenant,
                    errors.StorageFailed,
                    errors.QuotaExceeded,
                ),
                example=_FILE | {"op": "copy", "to": "data/out.csv"},
            ),
            "DELETE": Operation(
                "Remove a file, or a directory with all that is in it.",
                answer=wire_files.FilesRemoved,
                query=wire_files.FileQuery,
                errors=_REFUSED,
                example=_FILE,
            ),
        },
    ),
    Route(
        "/v1/scopes",
        scopes.ScopesHandler,
        {"GET": Operation("List the scopes.", answer=wire_scopes.ScopeList)},
    ),
    Route(
        "/v1/scopes/{scope}",
        scopes.ScopeHandler,
        {
            "DELETE": Operation(
                "Remove all sandboxes of a scope; with purge all its data.",
                answer=wire.Removed,
                query=wire.PurgeQuery,
                errors=(errors.SessionBusy,),
                example={"scope": "u1", "purge": "true"},
            )
        },
    ),
    Route(
        "/v1/scopes/{scope}/sessions",
        scopes.SessionsHandler,
        {
            "GET": Operation(
                "List the sandboxes of a scope.",
                answer=wire.SessionList,
                example={"scope": "u1"},
            )
        },
    ),
    Route(
        "/v1/scopes/{scope}/sessions/{session}",
        scopes.SessionHandler,
        {
            "DELETE": Operation(
                "Remove a session's sandbox; its data stays unless purge.",
                answer=wire.Removed,
                query=wire.PurgeQuery,
                errors=(errors.SessionBusy,),
                example={"scope": "u1", "session": "chatA"},
            )
        },
    ),
    Route(
        "/v1/scopes/{scope}/sandbox",
        scopes.SandboxHandler,
        {
            "DELETE": Operation(
                "Remove the session-less sandbox of a scope; its data stays.",
                answer=wire.Removed,
                query=wire.ForceQuery,
                errors=(errors.SessionBusy,),
                example={"scope": "u1", "force": "true"},
            )
        },
    ),
    Route(
        "/healthz",
        health.HealthHandler,
        {
            "GET": Operation(
                "Say whether the service can serve.",
                answer=wire.Health,
                errors=(errors.RuntimeUnavailable,),
                public=True,
                while_draining=True,
            )
        },
    ),
    Route(
        "/metrics",
        metrics.MetricsHandler,
        {
            "GET": Operation(
                "What the service counts and measures, in the text format of Prometheus.",
                media="text/plain",
                while_draining=True,
            )
        },
    ),
    Route(
        "/openapi.json",
        openapi.OpenApiHandler,
        {"GET": Operation("This document.", public=True, while_draining=True)},
    ),
    Route(
        "/docs",
        openapi.DocsHandler,
        {"GET": Operation("This document as a page.", public=True, while_draining=True)},
    ),
)


def application(api: Api) -> Application:
    """Return the application that serves ``ROUTES``; any other path is refused like the rest, in JSON."""
    return Application(
        [(route.pattern, route.handler, {"route": route}) for route in ROUTES],
        api=api,
        openapi=openapi.document(ROUTES, api.version),
        log_function=log_request,
        default_handler_class=ApiHandler,
        compress_response=False,
        autoreload=False,
    )
