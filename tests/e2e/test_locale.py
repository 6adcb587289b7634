"""A locale without Unicode, as bare containers have, takes nothing from a model with a name in Unicode."""

from __future__ import annotations

from support.http import get, post
from support.servers import MODEL_ARGUMENTS, Start, wait_ready

#: What Python would otherwise mend by itself, as it cannot for locales such as ISO-8859-1.
NO_UNICODE = {
    "LC_ALL": "C",
    "PYTHONUTF8": "0",
    "PYTHONCOERCECLOCALE": "0",
    "PYTHONIOENCODING": "ascii:strict",
}
NAME = "modèle-你好"


def test_a_model_is_served_under_its_name(start: Start) -> None:
    options = (f"--served-model-name={NAME}", "--port=0", "--grpc-port=0", "--metrics-port=0")
    server = start("serve", *MODEL_ARGUMENTS, *options, "--executor=simulated", environment=NO_UNICODE)
    address = wait_ready(server)
    assert [model["id"] for model in get(address, "/v1/models").json()["data"]] == [NAME]
    body = {"model": NAME, "prompt": "Grüße", "max_tokens": 2, "echo": True}
    answer = post(address, "/v1/completions", body)
    assert answer.json()["choices"][0]["text"].startswith("Grüße")
    assert server.stop() == 0, server.log
    assert "Traceback" not in server.log
