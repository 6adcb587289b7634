//! A double of a server that answers as it is scripted: what is asked again, and what is not.

#![allow(clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, reason = "the double is a server")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;

use bytes::Bytes;
use inflight_objects::{ObjectError, Objects, ObjectsUrl, Upload};

/// What is answered to one request; `None`: the connection ends without an answer.
type Answer = Option<(u16, &'static str)>;

/// A server for these requests, one after another. Each connection takes `most` of them.
fn serve(answers: Vec<Answer>, most: usize) -> (Objects, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, asked) = mpsc::channel();
    thread::spawn(move || {
        let mut answers = answers.into_iter();
        while let Ok((stream, _)) = listener.accept() {
            for _ in 0..most {
                let Some(line) = request(&stream) else { break };
                let _ = sender.send(line);
                let Some(answer) = answers.next() else { return };
                let Some((status, body)) = answer else { break };
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 {status} x\r\netag: \"t\"\r\ncontent-length: {length}\r\n\r\n{body}"
                );
                (&stream).write_all(head.as_bytes()).unwrap();
            }
        }
    });
    let url = ObjectsUrl::new("s3://bucket/prefix");
    let objects = Objects::of(&url, |name| match name {
        "AWS_ENDPOINT_URL" => Some(format!("http://{address}")),
        "AWS_ACCESS_KEY_ID" => Some("AKID".to_owned()),
        "AWS_SECRET_ACCESS_KEY" => Some("hidden".to_owned()),
        "AWS_SESSION_TOKEN" => Some("hidden token+".to_owned()),
        _ => None,
    });
    (objects.unwrap(), asked)
}

/// The first line of a request, which is read as a whole; without the signature.
fn request(stream: &TcpStream) -> Option<String> {
    let mut reader = BufReader::new(stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        if line == "\r\n" {
            break;
        }
        lines.push(line.trim().to_lowercase());
    }
    let length = lines
        .iter()
        .find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    reader.read_exact(&mut body).ok()?;
    let path = lines[0].split(' ').nth(1).unwrap().to_owned();
    assert!(
        path.contains("x-amz-security-token=hidden%20token%2b"),
        "{path}"
    );
    let method = lines[0].split(' ').next().unwrap();
    let (path, query) = path.split_once('?').unwrap();
    let own = query.split('&').filter(|part| !part.starts_with("x-amz-"));
    let own: Vec<&str> = own.collect();
    Some(format!("{method} {path}?{}", own.join("&")))
}

fn all(asked: &mpsc::Receiver<String>) -> Vec<String> {
    asked.try_iter().collect()
}

#[test]
fn what_passes_is_asked_again_and_not_for_ever() {
    let busy = Some((503, "<Error><Code>SlowDown</Code></Error>"));
    let (objects, asked) = serve(vec![busy, None, Some((206, "ab"))], 9);
    assert_eq!(objects.read("x", 0, 2).unwrap(), "ab");
    assert_eq!(all(&asked), ["get /bucket/prefix/x?"; 3]);
    let (objects, asked) = serve(vec![busy; 9], 9);
    let error = objects.put("x", Bytes::new()).unwrap_err();
    assert!(
        matches!(error, ObjectError::Refused { status: 503, .. }),
        "{error}"
    );
    assert!(!format!("{error:?}").contains("hidden"));
    assert_eq!(all(&asked).len(), 4);
    let denied = Some((403, "<Error><Code>AccessDenied</Code></Error>"));
    let (objects, asked) = serve(vec![denied; 9], 9);
    let error = objects.delete("x").unwrap_err();
    assert!(matches!(error, ObjectError::Denied { .. }), "{error}");
    assert_eq!(all(&asked), ["delete /bucket/prefix/x?"]);
}

#[test]
fn a_connection_that_the_server_closed_costs_no_attempt() {
    let (objects, asked) = serve(vec![Some((206, "a")); 4], 1);
    let begun = std::time::Instant::now();
    for _ in 0..4 {
        assert_eq!(objects.read("x", 0, 1).unwrap(), "a");
    }
    assert!(begun.elapsed().as_millis() < 500, "none waited");
    assert!(all(&asked).len() >= 4);
}

#[test]
fn an_answer_of_another_length_is_not_a_content() {
    for (status, body) in [(206, "abc"), (206, ""), (200, "ab")] {
        let (objects, _asked) = serve(vec![Some((status, body))], 1);
        assert!(
            matches!(objects.read("x", 1, 3), Err(ObjectError::Form(_))),
            "{status} {body}"
        );
    }
    let (objects, _asked) = serve(vec![Some((200, "<html></html>"))], 1);
    assert!(matches!(objects.list("", None), Err(ObjectError::Form(_))));
}

#[test]
fn an_upload_whose_last_answer_was_lost_is_whole() {
    const BEGUN: Answer = Some((200, "<R xmlns=\"n\"><UploadId>u&amp;1</UploadId></R>"));
    const GONE: Answer = Some((404, "<Error><Code>NoSuchUpload</Code></Error>"));
    for (head, is_whole) in [("abc", true), ("ab", false)] {
        let part = Some((200, ""));
        let answers = vec![BEGUN, part, part, None, GONE, Some((200, head))];
        let (objects, asked) = serve(answers, 9);
        let mut upload = Upload::new("x");
        objects.add(&mut upload, Bytes::from_static(b"ab")).unwrap();
        let finished = objects.finish(&mut upload, Bytes::from_static(b"c"));
        assert_eq!(finished.is_ok(), is_whole, "{finished:?}");
        assert_eq!(
            all(&asked),
            [
                "post /bucket/prefix/x?uploads=",
                "put /bucket/prefix/x?partnumber=1&uploadid=u%261",
                "put /bucket/prefix/x?partnumber=2&uploadid=u%261",
                "post /bucket/prefix/x?uploadid=u%261",
                "post /bucket/prefix/x?uploadid=u%261",
                "head /bucket/prefix/x?",
            ]
        );
    }
}

#[test]
fn lists_go_on_where_they_ended() {
    let first = "<ListBucketResult><Contents><Key>prefix/a</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
                 </Contents><Contents><Key>elsewhere</Key></Contents>\
                 <NextContinuationToken>t=1</NextContinuationToken></ListBucketResult>";
    let (objects, asked) = serve(
        vec![
            Some((200, first)),
            Some((200, "<ListBucketResult></ListBucketResult>")),
        ],
        9,
    );
    let page = objects.list("a", None).unwrap();
    assert_eq!(page.items.len(), 1);
    assert_eq!(page.items[0].name, "a");
    let last = objects.list("a", page.next.as_deref()).unwrap();
    assert!(last.items.is_empty() && last.next.is_none());
    assert_eq!(
        all(&asked),
        [
            "get /bucket/?list-type=2&prefix=prefix%2fa",
            "get /bucket/?continuation-token=t%3d1&list-type=2&prefix=prefix%2fa",
        ]
    );
}
