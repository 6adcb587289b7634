//! Every model, in every interleaving of a few switches.

macro_rules! models {
    ($($parent:ident::$piece:ident: $($model:ident),+;)+) => {
        $(mod $piece {
            $(#[test]
            fn $model() {
                inflight_interleavings::check(inflight_interleavings::$parent::$piece::$model);
            })+
        })+
    };
}

models! {
    engine::submit_queue: what_is_pushed_is_taken, a_cancel_wakes, a_cancel_comes_after_its_request,
        nothing_is_taken_twice;
    engine::wake_list: every_stream_is_woken, each_is_woken_once, one_alone_is_woken_at_once;
    engine::outbox_models: every_row_is_taken, rows_that_may_wait_come_with_the_next, a_reply_comes_before_the_end,
        no_request_outlives_its_stream, a_request_ends_once, a_failure_wakes_all, room_is_noticed;
    upstream::queue_models: every_request_is_sent, a_stop_takes_back_or_follows, no_more_wait_than_fit,
        a_close_ends_the_stream;
    upstream::inbox_models: every_token_comes_once, a_notice_comes_once, a_notice_wakes,
        who_gathers_is_woken_at_the_end;
    upstream::mailbox_models: every_response_comes_once, a_failure_comes_last, the_backlog_is_given_back;
    upstream::handle_models: nobody_waits_at_an_ended_connection, a_request_ends_once,
        who_is_woken_finds_the_lock_free, the_count_is_of_what_is_open;
    upstream::registry_models: every_row_reaches_its_request, a_request_ends_once, who_gets_too_much_fails_alone,
        a_notice_reaches_all_that_are_open;
}
