"""Log probabilities and logits: of the tokens that came, and at no cost for others."""

from __future__ import annotations

from inflight._native import Capability
from inflight.checklist.check import check
from inflight.checklist.outcome import Facts, expect, expect_equal
from inflight.checklist.subject import Answer, Subject
from inflight.executors.base import OutputConfig

_WANTED = OutputConfig(return_log_probs=True)
#: Tokens that are read of the long answer: its cost is what is reserved for the others.
_READ = 64
_MOST = 8192


def _expect_log_probs(answer: Answer) -> None:
    expect_equal("log probabilities", len(answer.log_probs), len(answer.first))
    expect(all(value <= 1e-4 for value in answer.log_probs), f"log probabilities above 0: {answer.log_probs}")


@check(
    "log probabilities", "each of 64 streamed tokens has its log probability", needs=(Capability.LOG_PROBS,)
)
def short(subject: Subject) -> Facts:
    answer = subject.ask(64, output_config=_WANTED).require()
    _expect_log_probs(answer)
    return {"between_tokens_ms": answer.between_tokens_ms()}


@check(
    "long log probabilities",
    "a request with log probabilities and a large `max_tokens` runs next to a plain one",
    needs=(Capability.LOG_PROBS,),
)
def long(subject: Subject) -> Facts:
    most = min(_MOST, subject.info.max_seq_len - len(subject.prompt) - 1)
    alone = subject.ask(_READ).require()
    heavy = subject.request(most, output_config=_WANTED)
    [with_values, plain] = subject.send([heavy, subject.request(_READ)])
    subject.wait([plain])
    enough = min(_READ, most)
    subject.wait([with_values], lambda answer: answer.finals > 0 or len(answer.first) >= enough)
    subject.executor.cancel([heavy.client_id])
    subject.wait([with_values])
    _expect_log_probs(with_values.require())
    plain.require()
    return {
        "max_tokens": most,
        "plain_alone_ms": alone.between_tokens_ms(),
        "plain_next_to_it_ms": plain.between_tokens_ms(),
    }


@check("alternatives", "the greedy token is the best of its alternatives", needs=(Capability.TOP_LOG_PROBS,))
def alternatives(subject: Subject) -> None:
    wanted = OutputConfig(return_log_probs=True, num_top_log_probs=2)
    answer = subject.ask(16, output_config=wanted).require()
    expect_equal("lists of alternatives", len(answer.top_ids), len(answer.first))
    best = [ids[0] for ids in answer.top_ids]
    expect_equal("best alternatives", best, answer.first)


@check(
    "prompt log probabilities",
    "each token of the prompt but the first has its log probability",
    needs=(Capability.PROMPT_LOG_PROBS,),
    load="logits",
)
def of_the_prompt(subject: Subject) -> None:
    answer = subject.ask(2, output_config=OutputConfig(num_prompt_log_probs=0)).require()
    expect_equal("log probabilities", len(answer.prompt_log_probs), len(subject.prompt))


@check(
    "prompt logits",
    "the logits of a prompt cover its tokens",
    needs=(Capability.CONTEXT_LOGITS,),
    load="logits",
)
def context(subject: Subject) -> None:
    answer = subject.ask(2, output_config=OutputConfig(return_context_logits=True)).require()
    expect("context_logits" in answer.tensors, "no `context_logits` came")
    expect_equal("rows", answer.tensors["context_logits"].shape[0], len(subject.prompt))


@check(
    "output logits",
    "the logits of an answer in one piece are those of its tokens",
    needs=(Capability.GENERATION_LOGITS,),
    load="logits",
)
def generation(subject: Subject) -> None:
    import numpy as np

    wanted = OutputConfig(return_generation_logits=True)
    answer = subject.ask(8, output_config=wanted, streaming=False).require()
    expect("generation_logits" in answer.tensors, "no `generation_logits` came")
    tensor = answer.tensors["generation_logits"]
    values = np.frombuffer(tensor.data, "<f4").reshape(tensor.shape)[0]
    best = values[: len(answer.first), : subject.info.vocab_size].argmax(axis=1).tolist()
    expect_equal("most probable tokens", best, answer.first)
