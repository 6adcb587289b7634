//! What is particular to a database: its versions, its connections and its texts.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tokio_postgres::config::Host;

use super::helpers::*;
use super::kept::{BOUNDS, Kept, ONE, PATH, Place, on_each};
use crate::batch::{Dialect, Status};
use crate::id::FileId;
use crate::store::{DataUrl, FILE, Page, Store, StoreError, postgres, schema};

on_each!(any_text_is_kept,);

/// A connection to the database that is lost with the answer to the next `COMMIT`, once `is_armed`.
fn lossy(target: SocketAddr, is_armed: Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, server) = (client.unwrap(), TcpStream::connect(target).unwrap());
            let is_lost = Arc::new(AtomicBool::new(false));
            let (mut back, mut forth) = (server.try_clone().unwrap(), server);
            let (mut answered, lost) = (client.try_clone().unwrap(), Arc::clone(&is_lost));
            thread::spawn(move || {
                let mut bytes = [0; 65536];
                while let Ok(length @ 1..) = back.read(&mut bytes) {
                    if lost.load(Ordering::SeqCst) {
                        // It is done, and nobody hears of it.
                        let _ = answered.shutdown(Shutdown::Both);
                        return;
                    }
                    let _ = answered.write_all(&bytes[..length]);
                }
            });
            let is_armed = Arc::clone(&is_armed);
            thread::spawn(move || {
                let mut bytes = [0; 65536];
                while let Ok(length @ 1..) = client.read(&mut bytes) {
                    let sent = &bytes[..length];
                    let commits = sent.windows(6).any(|window| window == b"COMMIT");
                    if commits && is_armed.swap(false, Ordering::SeqCst) {
                        is_lost.store(true, Ordering::SeqCst);
                    }
                    let _ = forth.write_all(sent);
                }
            });
        }
    });
    address
}

#[test]
fn a_batch_whose_creation_was_not_confirmed_is_created_once() {
    let Some(kept) = Kept::postgres("confirmed") else {
        return;
    };
    let config = kept.url().read().unwrap().0;
    let (Some(Host::Tcp(host)), Some(port)) =
        (config.get_hosts().first(), config.get_ports().first())
    else {
        return;
    };
    let target = (host.as_str(), *port)
        .to_socket_addrs()
        .unwrap()
        .next()
        .unwrap();
    let is_armed = Arc::new(AtomicBool::new(false));
    let through = lossy(target, Arc::clone(&is_armed));
    let DataUrl(url) = kept.url();
    let url = url.replace(&format!("{host}:{port}"), &through.to_string());
    let store = Store::connect(&DataUrl(url), None, BOUNDS).unwrap();
    let input = upload(&store, ONE, &requests(1)).unwrap();
    is_armed.store(true, Ordering::SeqCst);
    let created = store
        .create_batch(&new_batch(Dialect::OpenAi), input.id)
        .unwrap();
    assert!(!is_armed.load(Ordering::SeqCst), "the answer was lost");
    is_armed.store(true, Ordering::SeqCst);
    let of_requests = store
        .create_batch_of(&new_batch(Dialect::Anthropic), &requests(2))
        .unwrap();
    assert_eq!(of_requests.counts.total, 2);
    let page = Page {
        after: None,
        before: None,
        limit: 9,
        is_descending: true,
    };
    for (dialect, id) in [
        (Dialect::OpenAi, created.id),
        (Dialect::Anthropic, of_requests.id),
    ] {
        let (all, _) = store.batches(&ONE, dialect, &page).unwrap();
        assert_eq!(all.iter().map(|batch| batch.id).collect::<Vec<_>>(), [id]);
    }
    // What did not come to its end is not there.
    let refused = store.create_batch(&new_batch(Dialect::OpenAi), FileId::new());
    assert!(matches!(refused, Err(StoreError::NoFile)));
}

fn any_text_is_kept(kept: &Kept) {
    let store = kept.open();
    let names = ["a\0b", "\u{10FFFF}0", "é"];
    let lines: Vec<String> = names.iter().map(|name| request(name)).collect();
    create(&store, lines.join("\n").as_bytes());
    let claim = claim(&store, 7, 1);
    assert!(store.import(&claim, 2).unwrap());
    let work = store.waiting(&claim, 0, 10, usize::MAX).unwrap();
    let found: Vec<&str> = work.iter().map(|work| work.custom_id.as_str()).collect();
    assert_eq!(found, names);
}

#[test]
fn a_store_of_a_newer_version_is_left_alone() {
    let kept = Kept::sqlite("newer");
    drop(kept.open());
    let Place::Directory(directory) = &kept.place else {
        unreachable!("it was just made")
    };
    let connection = rusqlite::Connection::open(directory.join(FILE)).unwrap();
    connection
        .pragma_update(None, "user_version", schema::VERSION + 1)
        .unwrap();
    let refused = Store::open(directory, None, BOUNDS).unwrap_err();
    assert!(matches!(refused, StoreError::Newer { .. }), "{refused}");
    let beside = directory.join("file");
    std::fs::write(&beside, b"x").unwrap();
    assert!(matches!(
        Store::open(&beside, None, BOUNDS),
        Err(StoreError::Directory { .. })
    ));
}

#[test]
fn a_database_of_a_newer_version_is_left_alone() {
    let Some(kept) = Kept::postgres("newer") else {
        return;
    };
    drop(kept.open());
    let (config, _) = kept.url().read().unwrap();
    postgres::run_once(&config, "UPDATE inflight_layout SET version = version + 1");
    let refused = Store::connect(&kept.url(), None, BOUNDS).unwrap_err();
    assert!(matches!(refused, StoreError::Newer { .. }), "{refused}");
}

#[test]
fn a_lost_connection_is_made_again_and_what_was_begun_is_undone() {
    let Some(kept) = Kept::postgres("lost") else {
        return;
    };
    let DataUrl(url) = kept.url();
    let named = DataUrl(format!("{url}&application_name=lost"));
    let store = Store::connect(&named, None, BOUNDS).unwrap();
    let file = upload(&store, ONE, b"x").unwrap();
    let cut = || {
        let sql = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'lost'";
        postgres::run_once(&kept.url().read().unwrap().0, sql);
    };
    // Between two calls nobody notices.
    cut();
    assert_eq!(read_all(&store, &ONE, file.id), b"x");
    upload(&store, ONE, b"y").unwrap();
    let failed = store.change(|transaction| {
        transaction.execute("DELETE FROM files", &[])?;
        cut();
        Ok(transaction.execute("DELETE FROM pieces", &[])?)
    });
    assert!(matches!(failed, Err(StoreError::Database(_))));
    assert_eq!(read_all(&store, &ONE, file.id), b"x");
    upload(&store, ONE, b"z").unwrap();
}

/// What the first version kept: a file, and a batch of it with one result that has come and one that has not.
fn old_rows(blob: fn(&str) -> String) -> String {
    let owner = blob(&"01".repeat(16));
    let (file, batch) = (blob(&"0a".repeat(16)), blob(&"0b".repeat(16)));
    let lines = requests(2);
    let content: String = lines.iter().map(|byte| format!("{byte:02x}")).collect();
    let (content, length) = (blob(&content), lines.len() / 2);
    let result = blob("7b7d0a");
    format!(
        "INSERT INTO files (id, owner, name, purpose, state, bytes, created, expires)
             VALUES ({file}, {owner}, 'in.jsonl', 'batch', 1, {}, 0, 1000000);
         INSERT INTO pieces (file, number, content) VALUES (1, 0, {content});
         INSERT INTO batches (id, owner, dialect, endpoint, \"window\", input, input_id, status, created, expires,
                              started, total, completed, bytes)
             VALUES ({batch}, {owner}, 0, '{PATH}', '24h', 1, {file}, 'in_progress', 0, 86400, 1, 2, 1, 3);
         INSERT INTO lines (batch, number, custom_id, start, length, state, result)
             VALUES (1, 1, '0', 0, {length}, 1, {result}), (1, 2, '1', {length}, {length}, 0, NULL);",
        lines.len()
    )
}

/// A store of the first version has all that it had.
fn an_old_store_keeps_its_content(kept: &Kept) {
    for _ in 0..2 {
        let store = kept.open();
        let file = FileId::parse(&format!("file-{}", "0a".repeat(16))).unwrap();
        assert_eq!(read_all(&store, &ONE, file), requests(2));
    }
    let store = kept.open();
    let claim = claim(&store, 7, 2);
    let work = store.waiting(&claim, 0, 9, usize::MAX).unwrap();
    assert_eq!(work.len(), 1);
    assert!(keep(&store, &claim, &[done(&claim, &work[0], 200)], 3));
    let ended = store.batch(&ONE, Dialect::OpenAi, claim.batch.id).unwrap();
    assert_eq!(ended.status, Status::Completed);
    let output = read_all(&store, &ONE, ended.output.unwrap());
    assert!(output.starts_with(b"{}\n{"), "both results");
}

fn make_old(kept: &Kept) {
    let tables = schema::STEPS[0];
    match &kept.place {
        Place::Directory(directory) => {
            std::fs::create_dir_all(directory).unwrap();
            let connection = rusqlite::Connection::open(directory.join(FILE)).unwrap();
            let rows = old_rows(|digits| format!("x'{digits}'"));
            connection
                .execute_batch(&format!("{tables}; {rows}"))
                .unwrap();
            connection.pragma_update(None, "user_version", 1).unwrap();
        }
        Place::Schema { .. } => {
            let rows = old_rows(|digits| format!("decode('{digits}', 'hex')"));
            let layout = "CREATE TABLE inflight_layout (version BIGINT NOT NULL); INSERT INTO inflight_layout VALUES (1)";
            let tables = postgres::translated(tables);
            let config = kept.url().read().unwrap().0;
            postgres::run_once(&config, &format!("{tables}; {rows}; {layout}"));
        }
    }
}

#[test]
fn a_file_of_the_first_version_opens_with_its_content() {
    let kept = Kept::sqlite("old");
    make_old(&kept);
    an_old_store_keeps_its_content(&kept);
    let moved = Kept::sqlite("old-objects").with_objects("old");
    if let Some(moved) = moved {
        make_old(&moved);
        an_old_store_keeps_its_content(&moved);
    }
}

#[test]
fn a_database_of_the_first_version_opens_with_its_content() {
    if let Some(kept) = Kept::postgres("old") {
        make_old(&kept);
        an_old_store_keeps_its_content(&kept);
    }
}
