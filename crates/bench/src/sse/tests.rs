//! Streams cut at every place, and answers that are not streams.

use proptest::prelude::*;

use super::*;

const STREAM: &str = concat!(
    "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
    "data: {\"choices\":[{\"delta\":{\"content\":\"a \\\"completion_tokens\\\":9\"}}]}\n\n",
    ": keep-alive\n\n",
    "data: {\"choices\":[{\"delta\":{\"content\":\"é\"}}]}\r\n\r\n",
    "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}\n\n",
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":128,",
    "\"prompt_tokens_details\":{\"cached_tokens\":2}}}\n\n",
    "data: [DONE]\n\n",
);

fn expected() -> Vec<Event> {
    vec![
        Event::Other,
        Event::Content,
        Event::Content,
        Event::Other,
        Event::Usage(TokenUsage {
            prompt: 3,
            cached: 2,
            completion: 128,
        }),
        Event::Done,
    ]
}

/// The stream as a chunked response, cut into HTTP chunks at the given places.
fn chunked(cuts: &[usize]) -> Vec<u8> {
    let mut out = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
            Transfer-Encoding: chunked\r\n\r\n"
        .to_vec();
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % STREAM.len()).collect();
    cuts.extend([0, STREAM.len()]);
    cuts.sort_unstable();
    cuts.dedup();
    for pair in cuts.windows(2) {
        let data = &STREAM.as_bytes()[pair[0]..pair[1]];
        out.extend(format!("{:x};note=1\r\n", data.len()).bytes());
        out.extend(data);
        out.extend(b"\r\n");
    }
    out.extend(b"0\r\nsome: trailer\r\n\r\n");
    out
}

fn read(reader: &mut ResponseReader, parts: &[&[u8]]) -> (Vec<Event>, usize) {
    let (mut events, mut used) = (Vec::new(), 0);
    for part in parts {
        used += reader.feed(part, &mut |event| events.push(event)).unwrap();
    }
    (events, used)
}

proptest! {
    #[test]
    fn events_are_the_same_however_the_bytes_are_cut(
        chunks in prop::collection::vec(any::<usize>(), 0..6),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let wire = chunked(&chunks);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(wire.len())).collect();
        cuts.extend([0, wire.len()]);
        cuts.sort_unstable();
        let parts: Vec<&[u8]> = cuts.windows(2).map(|pair| &wire[pair[0]..pair[1]]).collect();
        let mut reader = ResponseReader::default();
        prop_assert_eq!(read(&mut reader, &parts), (expected(), wire.len()));
        prop_assert!(reader.is_complete() && reader.keeps_alive());
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut reader = ResponseReader::default();
        let _ = reader.feed(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", &mut |_| {});
        let _ = reader.feed(&bytes, &mut |_| {});
        let _ = ResponseReader::default().feed(&bytes, &mut |_| {});
    }
}

#[test]
fn the_next_response_is_left_alone() {
    let mut wire = chunked(&[]);
    let length = wire.len();
    wire.extend(b"HTTP/1.1 200");
    let mut reader = ResponseReader::default();
    assert_eq!(read(&mut reader, &[&wire]), (expected(), length));
}

#[test]
fn one_byte_at_a_time() {
    let wire = chunked(&[10, 100]);
    let parts: Vec<&[u8]> = wire.chunks(1).collect();
    assert_eq!(
        read(&mut ResponseReader::default(), &parts),
        (expected(), wire.len())
    );
}

#[test]
fn an_error_response_keeps_its_body_and_has_no_events() {
    let body = "{\"error\":{\"message\":\"no such model\"}}";
    let length = body.len();
    let head = format!("HTTP/1.1 404 Not Found\r\ncontent-length: {length}\r\n\r\n");
    let mut reader = ResponseReader::default();
    let (events, _) = read(&mut reader, &[head.as_bytes(), body.as_bytes()]);
    assert!(events.is_empty() && reader.is_complete());
    assert_eq!(
        (reader.status(), reader.error_body()),
        (404, body.to_owned())
    );
}

#[test]
fn a_closing_server_does_not_keep_alive() {
    for (head, complete) in [
        ("HTTP/1.1 200 OK\r\n\r\n", false),
        (
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
            true,
        ),
    ] {
        let mut reader = ResponseReader::default();
        read(&mut reader, &[head.as_bytes()]);
        assert_eq!(
            (reader.keeps_alive(), reader.is_complete()),
            (false, complete)
        );
    }
}

#[test]
fn what_is_not_http_is_refused() {
    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    for (wire, expected) in [
        (
            "SSH-2.0\r\n\r\n".to_owned(),
            ResponseError::StatusLine("SSH-2.0".into()),
        ),
        (
            format!("{head}zz\r\n"),
            ResponseError::ChunkSize("zz".into()),
        ),
        (
            format!("{head}+1\r\n"),
            ResponseError::ChunkSize("+1".into()),
        ),
        ("x".repeat(MAX_HEAD_BYTES + 1), ResponseError::HeadTooLong),
    ] {
        let result = ResponseReader::default().feed(wire.as_bytes(), &mut |_| {});
        assert_eq!(result, Err(expected));
    }
}

#[test]
fn events_by_what_they_say() {
    for (data, expected) in [
        ("[DONE]", Event::Done),
        ("{\"choices\":[{\"text\":\"x\"}]}", Event::Content),
        ("{\"choices\":[{\"text\":\"\"}]}", Event::Other),
        (
            "{\"choices\":[{\"delta\":{\"reasoning_content\":\"x\"}}]}",
            Event::Content,
        ),
        (
            "{\"delta\":{\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"\"}}]}}",
            Event::Other,
        ),
        (
            "{\"delta\":{\"tool_calls\":[{\"function\":{\"arguments\":\"{\"}}]}}",
            Event::Content,
        ),
        (
            "{\"choices\":[{\"delta\":{\"content\":null}}]}",
            Event::Other,
        ),
        (
            "{\"choices\":[],\"usage\":{\"completion_tokens\": 7}}",
            Event::Usage(TokenUsage {
                completion: 7,
                ..TokenUsage::default()
            }),
        ),
        (
            "{\"choices\":[],\"usage\":{\"completion_tokens\":null}}",
            Event::Other,
        ),
        (
            "{\"error\":{\"message\":\"m\"}}",
            Event::Error("{\"error\":{\"message\":\"m\"}}".into()),
        ),
        (
            "{\"output_ids\":[5,6],\"sequence_length\":2}",
            Event::Tokens(2),
        ),
        (
            "{\"num_output_tokens\":1,\"text_output\":\"x\"}",
            Event::Tokens(1),
        ),
        (
            "{\"error\":\"gone\"}",
            Event::Error("{\"error\":\"gone\"}".into()),
        ),
    ] {
        assert_eq!(classify(data.as_bytes()), expected, "{data}");
    }
}
