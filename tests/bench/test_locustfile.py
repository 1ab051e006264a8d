"""The locustfile is for users who have locust; here it is read, not run."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.service.fakes import ScriptedRunner
from tests.service.live import scripted_service

from rebar.service.http.app import create_app
from rebar.service.router import ServiceRouter

FILE = Path(__file__).parents[2] / "bench" / "locustfile.py"


def test_it_asks_for_routes_that_there_are() -> None:
    tree = ast.parse(FILE.read_text())
    asked = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.startswith("/v1/")
    }
    service = scripted_service(ScriptedRunner())
    document = create_app(ServiceRouter([service])).openapi()
    assert asked == {"/v1/models", "/v1/chat/completions"}
    assert asked <= set(document["paths"])


def test_each_kind_of_user_is_a_task() -> None:
    tree = ast.parse(FILE.read_text())
    (user,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    tasks = {
        function.name
        for function in user.body
        if isinstance(function, ast.FunctionDef)
        and any(ast.unparse(d).startswith("task(") for d in function.decorator_list)
    }
    assert tasks == {"chat", "hurry", "whole"}
