"""inspect-ai against a server: tiny tasks by its OpenAI-compatible provider, and by that of Anthropic."""

from __future__ import annotations

import json
from typing import Any

import inspect_ai
from inspect_ai import Task
from inspect_ai.dataset import Sample
from inspect_ai.model import ResponseSchema
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import Tool, tool
from inspect_ai.util import json_schema
from pydantic import BaseModel

OPENAI, ANTHROPIC = "openai-api/local/tiny", "anthropic/tiny"


class Colour(BaseModel):
    is_red: bool


@tool
def weather() -> Tool:
    async def execute(city: str) -> str:
        """The weather in a city.

        Args:
            city: The name of the city.
        """
        return f"rain in {city}"

    return execute


def run(model: str, *, text: str = "Say hi.", has_tool: bool = False, **more: Any) -> dict[str, Any]:
    solver = [use_tools(weather(), tool_choice="any"), generate(tool_calls="single")] if has_tool else [generate()]
    asked = Task(dataset=[Sample(input=text, target="a") for _ in range(2)], solver=solver, scorer=includes())
    [log] = inspect_ai.eval(asked, model=model, display="none", log_dir="logs", **{"max_tokens": 16, **more})
    errors = [sample.error.message for sample in log.samples or [] if sample.error]
    ends = [sample.output.stop_reason for sample in log.samples or [] if sample.output.choices]
    texts = [sample.output.completion for sample in log.samples or [] if sample.output.choices]
    return {"status": log.status, "errors": errors, "ends": ends, "texts": texts}


def main() -> None:
    schema = ResponseSchema(name="colour", json_schema=json_schema(Colour), strict=True)
    long = "a b " * 20_000
    told = {
        "plain": run(OPENAI, seed=1),
        "stream": run(OPENAI, model_args={"stream": True}),
        "responses": run(OPENAI, model_args={"responses_api": True}),
        "sampling": run(OPENAI, logprobs=True, top_logprobs=2, num_choices=2, temperature=0.5, top_p=0.9, top_k=20),
        "tools": run(OPENAI, has_tool=True, max_tokens=400, temperature=0),
        "tools_by_responses": run(
            OPENAI, has_tool=True, max_tokens=400, temperature=0, model_args={"responses_api": True}
        ),
        "schema": run(OPENAI, max_tokens=200, response_schema=schema),
        "context": run(OPENAI, text=long),
        "anthropic": run(ANTHROPIC),
        "anthropic_tools": run(ANTHROPIC, has_tool=True, max_tokens=400, temperature=0),
        "anthropic_schema": run(ANTHROPIC, max_tokens=200, response_schema=schema),
        "anthropic_context": run(ANTHROPIC, text=long),
    }
    print(json.dumps(told))


main()
