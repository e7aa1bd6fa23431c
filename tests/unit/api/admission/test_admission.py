"""Which routes need no credential is said in one place, and is all that does without."""

from __future__ import annotations

from support.served import Served

PUBLIC = {
    "/api/v1/healthz",
    "/api/v1/readyz",
    "/metrics",
    "/api/v1/downloads/{token}/{filename}",
    "/api/v1/uploads/{token}/{filename}",
    "/api/v1/traces/{token}/{filename}",
}


async def test_every_other_route_is_refused_without_a_credential(served: Served) -> None:
    paths = served.app.openapi()["paths"]
    assert set(paths) >= PUBLIC

    for path, methods in paths.items():
        for method in methods:
            url = f"http://localhost{path}".replace("{", "").replace("}", "")
            answer = await served.http.request(method, url, headers={"X-API-Key": ""}, content=b"not json")
            assert (answer.status_code == 401) == (path not in PUBLIC), (method, path, answer.status_code)


async def test_the_document_of_the_api_declares_the_credential_of_exactly_these_routes(served: Served) -> None:
    document = served.app.openapi()

    [(name, scheme)] = document["components"]["securitySchemes"].items()
    assert (scheme["type"], scheme["in"], scheme["name"]) == ("apiKey", "header", "X-API-Key")
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation.get("security", []) == ([] if path in PUBLIC else [{name: []}]), (method, path)


async def test_a_path_that_is_nothing_is_refused_without_a_credential(served: Served) -> None:
    for path in ("nowhere", "downloads/a", "downloads/a/b/c", "traces/a", "healthz/x", "../../docs/x", "Healthz"):
        answer = await served.http.post(path, headers={"X-API-Key": ""})
        assert answer.status_code == 401, path
