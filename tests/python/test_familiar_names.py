"""Names that people know from other servers: the error says what they are here."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from inflight.cli.app import inflight
from inflight.cli.build import build
from inflight.cli.familiar import COMMANDS, OPTIONS
from inflight.cli.serve import serve
from inflight.executors import options_of


def run(*arguments: str) -> str:
    result = CliRunner(catch_exceptions=False).invoke(inflight, arguments)
    assert result.exit_code == 2, result.output
    return result.output


def flags(command: click.Command) -> set[str]:
    context = click.Context(command, help_option_names=["-h", "--help"])
    return {flag for option in command.get_params(context) for flag in option.opts}


@pytest.mark.parametrize("command", ["serve", "worker"])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "m"], "No such option '--model': pass MODEL without an option"),
        (["m", "--tensor-parallel-size", "2"], "use `--tp-size`"),
        (["m", "--tensor_parallel_size=2"], "use `--tp-size`."),
        (["m", "--dtype", "bfloat16"], "use `--executor-option dtype=VALUE`"),
        (["m", "--gpu-memory-utilization=0.9"], "kv_cache_free_gpu_mem_fraction=SHARE"),
        (["m", "--max-model-len", "4096"], "use `--max-seq-len`"),
        (["m", "--max_seq_len", "4096"], "No such option '--max_seq_len': use `--max-seq-len`."),
        (["m", "--hf-token=x"], "set the environment variable `HF_TOKEN`"),
        (["m", "--max-batch-sizes", "4"], "'--max-batch-size'"),
    ],
)
def test_another_servers_option_is_answered_with_ours(command: str, arguments: list[str], said: str) -> None:
    assert said in run(command, *arguments)


def test_a_worker_is_not_given_what_only_serve_has() -> None:
    assert "': with `inflight serve`, use `--tp-size`" in run("worker", "--tensor-parallel-size=2")
    assert "': use `--max-seq-len`" in run("worker", "--max-model-len=2")


def test_other_commands_know_nothing_of_it() -> None:
    assert "use `--executor-option" not in run("top", "--dtype=x")


def test_what_is_advised_exists() -> None:
    taken = flags(serve)
    assert not OPTIONS.keys() & taken
    executors = {**options_of("tensorrt_llm"), **options_of("reference")}
    for flag, advice in OPTIONS.items():
        ours = flags(build) if "`inflight build --" in advice else taken
        named = set(re.findall(r"--[a-z-]+", advice))
        assert named <= ours, flag
        assert set(re.findall(r"--executor-option ([a-z_]+)=", advice)) <= executors.keys(), flag
    for name, advice in COMMANDS.items():
        assert inflight.get_command(click.Context(inflight), name) is None
        for ours in re.findall(r"`inflight ([a-z]+)", advice):
            assert inflight.get_command(click.Context(inflight), ours) is not None, name


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("serv", "No such command 'serv'. Did you mean 'serve'?"),
        ("benc", "Did you mean 'bench'?"),
        (
            "run",
            "No such command 'run': use `inflight serve MODEL`, and `inflight chat` in another terminal.",
        ),
        ("pull", "`inflight serve ORG/NAME` downloads the model"),
        ("models", "`/v1/models` lists those that are served"),
        ("xyzzy", "No such command 'xyzzy'.\n"),
    ],
)
def test_an_unknown_command_is_answered_with_near_names(command: str, said: str) -> None:
    assert said in run(command)


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


#: The options of `trtllm-serve MODEL` in 1.2.1, and what the 1.3 line added.
TRTLLM_SERVE = words("""
--tokenizer --custom_tokenizer --host --port --backend --custom_module_dirs --log_level --max_beam_width
--max_batch_size --max_num_tokens --max_seq_len --tensor_parallel_size --tp_size --pipeline_parallel_size
--pp_size --context_parallel_size --cp_size --moe_expert_parallel_size --ep_size --moe_cluster_parallel_size
--cluster_size --gpus_per_node --free_gpu_memory_fraction --kv_cache_free_gpu_memory_fraction
--num_postprocess_workers --trust_remote_code --revision --config --extra_llm_api_options --reasoning_parser
--tool_parser --metadata_server_config_file --server_role --fail_fast_on_attention_window_too_large
--otlp_traces_endpoint --disagg_cluster_uri --enable_chunked_prefill --media_io_kwargs --chat_template
--hf_revision --kv_cache_dtype --enable_attention_dp --video_pruning_rate --grpc --served_model_name
--extra_visual_gen_options
""")
#: Its endpoints for models that write text, of either line.
TRTLLM_ENDPOINTS = words("""
/health /health_generate /version /v1/models /metrics /prometheus/metrics /perf_metrics /kv_cache_events
/steady_clock_offset /v1/completions /v1/chat/completions /v1/responses /release_memory /resume_memory
/update_weights /server_info /v1/data_transceiver_state /_internal/tokenize /v1/embeddings
""")


@pytest.mark.parametrize("option", TRTLLM_SERVE)
def test_every_option_of_trtllm_serve_has_an_answer(option: str) -> None:
    name = option.replace("_", "-")
    assert name in flags(serve) or name in OPTIONS
    if option != name:
        assert "No such option" in (answer := run("serve", "m", option, "1"))
        assert "': " in answer


@pytest.mark.parametrize("name", [*TRTLLM_SERVE, *TRTLLM_ENDPOINTS])
def test_the_page_names_all_of_trtllm_serve(name: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "MIGRATION.md").read_text(encoding="utf-8")
    section = page.partition("## From `trtllm-serve`")[2].partition("\n## ")[0]
    assert f"`{name}`" in section


def test_a_limit_of_other_executors_is_answered_with_the_option_of_this_one() -> None:
    answer = run("worker", "--executor=tensorrt_llm", "--max-batch-size=4")
    assert "hint: pass `--executor-option max_batch_size=4`" in answer
