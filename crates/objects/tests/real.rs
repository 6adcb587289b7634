//! Objects of a real S3 server, which checks signatures: below `INFLIGHT_TEST_S3` (`s3://BUCKET`), which the usual
//! variables say how to ask. Without it nothing is tested here.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use inflight_objects::{ObjectError, Objects, ObjectsUrl, Upload};

fn open(change: &[(&'static str, &str)], bucket: Option<&str>) -> Option<Objects> {
    let named = std::env::var("INFLIGHT_TEST_S3").ok()?;
    let bucket = bucket.unwrap_or(&named);
    let url = ObjectsUrl::new(format!("{bucket}/objects-{}/a.b_c", std::process::id()));
    let made = Objects::of(&url, |name| {
        let changed = change.iter().find(|(known, _)| *known == name);
        match changed {
            Some((_, value)) => Some((*value).to_owned()),
            None => std::env::var(name).ok(),
        }
    });
    Some(made.unwrap())
}

fn names(objects: &Objects, prefix: &str) -> Vec<String> {
    let (mut all, mut from) = (Vec::new(), None);
    loop {
        let page = objects.list(prefix, from.as_deref()).unwrap();
        all.extend(page.items.into_iter().map(|one| {
            assert!((-5..600).contains(&one.age), "{one:?}");
            one.name
        }));
        from = page.next;
        if from.is_none() {
            return all;
        }
    }
}

#[test]
fn objects_are_written_read_in_ranges_listed_and_deleted() {
    let Some(objects) = open(&[], None) else {
        return;
    };
    objects.check("one/check").unwrap();
    objects
        .put("one/x", Bytes::from_static(b"0123456789"))
        .unwrap();
    objects.put("one/empty", Bytes::new()).unwrap();
    objects.put("other/y", Bytes::from_static(b"y")).unwrap();
    assert_eq!(objects.read("one/x", 0, 10).unwrap(), "0123456789");
    assert_eq!(objects.read("one/x", 3, 5).unwrap(), "34");
    assert_eq!(objects.read("one/x", 9, 10).unwrap(), "9");
    assert!(objects.read("one/x", 5, 11).is_err(), "it is shorter");
    assert_eq!(names(&objects, "one/"), ["one/empty", "one/x"]);
    assert!(matches!(
        objects.read("one/none", 0, 1),
        Err(ObjectError::Missing(_))
    ));
    for name in ["one/x", "one/empty", "other/y", "one/x"] {
        objects.delete(name).unwrap();
    }
    assert!(names(&objects, "one/").is_empty());
}

#[test]
fn large_objects_are_written_in_parts() {
    let Some(objects) = open(&[], None) else {
        return;
    };
    let size = usize::try_from(Upload::part_bytes(1)).unwrap();
    let part = |byte: u8| Bytes::from(vec![byte; size]);
    let mut upload = Upload::new("parts/large");
    objects.add(&mut upload, part(b'a')).unwrap();
    objects.add(&mut upload, part(b'b')).unwrap();
    assert!(matches!(
        objects.read("parts/large", 0, 1),
        Err(ObjectError::Missing(_))
    ));
    objects
        .finish(&mut upload, Bytes::from_static(b"end"))
        .unwrap();
    let length = 2 * size as u64 + 3;
    assert_eq!(upload.bytes(), length);
    assert_eq!(
        objects
            .read("parts/large", size as u64 - 1, size as u64 + 1)
            .unwrap(),
        "ab"
    );
    assert_eq!(
        objects.read("parts/large", length - 4, length).unwrap(),
        "bend"
    );
    objects.delete("parts/large").unwrap();
    let mut given_up = Upload::new("parts/given-up");
    let mut forgotten = Upload::new("parts/forgotten");
    objects.add(&mut given_up, part(b'a')).unwrap();
    objects.add(&mut forgotten, part(b'a')).unwrap();
    objects.abandon(&given_up).unwrap();
    objects.abandon(&given_up).unwrap();
    let left = objects.unfinished("parts/").unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].name, "parts/forgotten");
    objects.give_up(&left[0]).unwrap();
    assert!(objects.unfinished("parts/").unwrap().is_empty());
    assert!(objects.finish(&mut forgotten, Bytes::new()).is_err());
    assert!(names(&objects, "parts/").is_empty());
}

#[test]
fn what_is_not_allowed_with_objects_says_why() {
    let secret = "a-wrong-secret";
    for (change, bucket, expected) in [
        (
            &[("AWS_SECRET_ACCESS_KEY", secret)][..],
            None,
            "does not accept the credentials",
        ),
        (
            &[("AWS_ACCESS_KEY_ID", "AKIDNOBODY")],
            None,
            "does not accept the credentials",
        ),
        (
            &[],
            Some("s3://no-such-bucket"),
            "the bucket `no-such-bucket` does not exist",
        ),
        (
            &[("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")],
            None,
            "cannot connect to `127.0.0.1:1`",
        ),
    ] {
        let Some(objects) = open(change, bucket) else {
            return;
        };
        let error = objects.check("check").unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(!format!("{error} {error:?}").contains(secret));
    }
}
