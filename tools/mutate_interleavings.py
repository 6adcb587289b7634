#!/usr/bin/env python3
"""Shows that every model of `interleavings` can fail: damages a copy of the product's files, one line at a
time, and expects the model to notice.

    python tools/mutate_interleavings.py [WORD]

runs those whose model has the word in its name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORKER, UPSTREAM = "crates/worker/src/engine", "crates/upstream/src"

QUEUE, WAKE = f"{WORKER}/queue.rs", f"{WORKER}/wake.rs"
REQUESTS, INBOX, HANDLES = f"{UPSTREAM}/request_queue.rs", f"{UPSTREAM}/inbox.rs", f"{UPSTREAM}/handles.rs"
MAILBOX = f"{UPSTREAM}/shared_stream/mailbox.rs"
OUTBOX, REGISTRY = "crates/worker/src/outbox.rs", f"{UPSTREAM}/registry.rs"

#: The model, the file, what is in it, and what is put in its place.
MUTATIONS = [
    (
        "submit_queue::what_is_pushed_is_taken",
        QUEUE,
        "closed = true;\n        self.filled.notify_one();",
        "closed = true;",
    ),
    (
        "submit_queue::a_cancel_wakes",
        QUEUE,
        ".extend_from_slice(client_ids);\n        self.filled.notify_one();",
        ".extend_from_slice(client_ids);",
    ),
    (
        "submit_queue::a_cancel_comes_after_its_request",
        QUEUE,
        "return Some(std::mem::take(&mut state.batch));",
        "let mut taken = std::mem::take(&mut state.batch); if !taken.cancels.is_empty() "
        "{ state.batch.requests = std::mem::take(&mut taken.requests); } return Some(taken);",
    ),
    (
        "submit_queue::nothing_is_taken_twice",
        QUEUE,
        "        loop {\n            if !state",
        "        loop {\n            if state.closed { return None; }\n            if !state",
    ),
    (
        "wake_list::every_stream_is_woken",
        WAKE,
        "self.waker.register(context.waker());\n"
        "            std::mem::swap(&mut batch, &mut *self.outboxes.lock());",
        "std::mem::swap(&mut batch, &mut *self.outboxes.lock());\n"
        "            self.waker.register(context.waker());",
    ),
    (
        "wake_list::each_is_woken_once",
        WAKE,
        "self.outboxes.lock().append(outboxes);",
        "self.outboxes.lock().extend(outboxes.iter().cloned());",
    ),
    ("wake_list::one_alone_is_woken_at_once", WAKE, "outboxes.len() > 1", "!outboxes.is_empty()"),
    (
        "queue_models::every_request_is_sent",
        REQUESTS,
        "is_stop: false,\n                request,\n            });\n            state.waker.take()",
        "is_stop: false,\n                request,\n            });\n            None::<Waker>",
    ),
    (
        "queue_models::a_stop_takes_back_or_follows",
        REQUESTS,
        "state.waiting_requests -= 1;\n",
        "\n",
    ),
    (
        "queue_models::no_more_wait_than_fit",
        REQUESTS,
        "waiting_requests >= self.capacity",
        "waiting_requests > self.capacity",
    ),
    (
        "queue_models::a_close_ends_the_stream",
        REQUESTS,
        "state.waiting_requests = 0;\n            state.waker.take()",
        "state.waiting_requests = 0;\n            None::<Waker>",
    ),
    (
        "inbox_models::every_token_comes_once",
        INBOX,
        "state.unread_since.get_or_insert(now);\n        state.waker.take()",
        "state.unread_since.get_or_insert(now);\n        None",
    ),
    ("inbox_models::a_notice_comes_once", INBOX, "state.notice.take();", "state.notice;"),
    (
        "inbox_models::a_notice_wakes",
        INBOX,
        "state.notice = state.notice.max(Some(notice));\n        state.waker.take()",
        "state.notice = state.notice.max(Some(notice));\n        None",
    ),
    ("inbox_models::who_gathers_is_woken_at_the_end", INBOX, "take_if(|_| ends)", "take_if(|_| !ends)"),
    (
        "mailbox_models::every_response_comes_once",
        MAILBOX,
        "Ok(state.waker.take())",
        "Ok(None)",
    ),
    (
        "mailbox_models::a_failure_comes_last",
        MAILBOX,
        "state.failure = Some(status);\n        state.waker.take()",
        "state.failure = Some(status);\n        None",
    ),
    (
        "mailbox_models::the_backlog_is_given_back",
        MAILBOX,
        "if detached > 0 {",
        "if detached > 100 {",
    ),
    (
        "handle_models::nobody_waits_at_an_ended_connection",
        HANDLES,
        "let mut all = self.lock();\n        match &all.state.ended {",
        "let ended = self.state.lock().ended.clone();\n"
        "        let mut all = self.lock();\n        match &ended {",
    ),
    (
        "handle_models::a_request_ends_once",
        HANDLES,
        "let mut all = self.lock();\n        let waiting = all.remove(handle)?;\n"
        "        all.wake(waiting.fail(why, now));",
        "let waker = self.lock().get(handle)?.fail(why, now);\n        let mut all = self.lock();\n"
        "        all.wake(waker);\n        let waiting = all.remove(handle)?;",
    ),
    (
        "handle_models::who_is_woken_finds_the_lock_free",
        HANDLES,
        "self.wakers.0.extend(waker);",
        "waker.into_iter().for_each(Waker::wake);",
    ),
    (
        "handle_models::the_count_is_of_what_is_open",
        HANDLES,
        "self.active.store(self.state.open.len(), Ordering::Relaxed);",
        "",
    ),
    (
        "outbox_models::every_row_is_taken",
        OUTBOX,
        "state.step_is_due = false;\n            state.ending.clear();",
        "state.ending.clear();",
    ),
    (
        "outbox_models::rows_that_may_wait_come_with_the_next",
        OUTBOX,
        "self.step_is_due |= wake;",
        "self.step_is_due = true;",
    ),
    (
        "outbox_models::a_reply_comes_before_the_end",
        OUTBOX,
        "state.live = state.live.saturating_sub(1);\n        drop(state);\n        self.wake();",
        "state.live = state.live.saturating_sub(1);",
    ),
    (
        "outbox_models::no_request_outlives_its_stream",
        OUTBOX,
        "if state.closed {\n            return false;\n        }\n        state.live +=",
        "state.live +=",
    ),
    (
        "outbox_models::a_request_ends_once",
        OUTBOX,
        "row.is_final && state.handles.get(&handle) != Some(&row.id)",
        "false",
    ),
    (
        "outbox_models::a_failure_wakes_all",
        OUTBOX,
        "let live = self.close_locked(&mut state);\n        drop(state);\n        self.wake();",
        "let live = self.close_locked(&mut state);\n        drop(state);",
    ),
    (
        "outbox_models::room_is_noticed",
        OUTBOX,
        "if state.refusals() < MAX_WAITING_REFUSALS {\n            self.room.notify_waiters();",
        "if state.refusals() < MAX_WAITING_REFUSALS {",
    ),
    (
        "registry_models::every_row_reaches_its_request",
        REGISTRY,
        "open.wake(waker);\n            if ends {",
        "if ends {",
    ),
    (
        "registry_models::a_request_ends_once",
        REGISTRY,
        "if ends {\n                open.remove(handle);\n            }",
        "",
    ),
    (
        "registry_models::who_gets_too_much_fails_alone",
        REGISTRY,
        "if *received > self.max_tokens {",
        "if *received > self.max_tokens && sequence_index > 0 {",
    ),
    (
        "registry_models::a_notice_reaches_all_that_are_open",
        REGISTRY,
        "for waker in wakers {\n            open.wake(waker);\n        }",
        "",
    ),
]


def main() -> None:
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    unnoticed = []
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch)
        shutil.copytree(
            ROOT / "interleavings", copy / "interleavings", ignore=shutil.ignore_patterns("target")
        )
        for file in {mutation[1] for mutation in MUTATIONS}:
            (copy / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, copy / file)
        for model, file, old, new in MUTATIONS:
            if word not in model:
                continue
            text = (ROOT / file).read_text()
            if text.count(old) != 1:
                raise SystemExit(f"{model}: {file} does not have this once:\n{old}")
            (copy / file).write_text(text.replace(old, new))
            noticed = not passes(copy, model)
            (copy / file).write_text(text)
            print(f"{'noticed' if noticed else 'NOT NOTICED':12} {model}", flush=True)
            unnoticed += [] if noticed else [model]
    if unnoticed:
        raise SystemExit(f"{len(unnoticed)} of {len(MUTATIONS)} were not noticed")


def passes(copy: Path, model: str) -> bool:
    """Whether the model holds; what does not compile says nothing of it."""
    command = ["cargo", "test", "--quiet", "--manifest-path", str(copy / "interleavings/Cargo.toml")]
    environment = {"CARGO_TARGET_DIR": str(ROOT / "target"), **os.environ, "RUSTFLAGS": "-Awarnings"}
    built = subprocess.run([*command, "--no-run"], env=environment, capture_output=True, check=False)
    if built.returncode != 0:
        raise SystemExit(f"{model}: its mutation does not compile:\n{built.stderr.decode()[-2000:]}")
    done = subprocess.run(
        [*command, "--", "--exact", model], env=environment, capture_output=True, check=False, timeout=120
    )
    return done.returncode == 0


if __name__ == "__main__":
    main()
