//! Calls whose bytes come as the test says, in front of one budget.

use futures_util::{FutureExt, StreamExt};
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::mpsc;

use super::*;

const MAX_MESSAGE: usize = 1 << 20;

struct Call {
    send: mpsc::UnboundedSender<Bytes>,
    body: ArrivingMessages,
}

impl Call {
    fn new(budget: &ArrivalBudget) -> Self {
        let (send, parts) = mpsc::unbounded_channel();
        let parts = futures_util::stream::unfold(parts, |mut parts| async move {
            let part: Bytes = parts.recv().await?;
            Some((Ok::<_, Status>(Frame::data(part)), parts))
        });
        let body = Body::new(StreamBody::new(parts.boxed()));
        Self {
            send,
            body: ArrivingMessages::new(body, budget.clone()),
        }
    }

    fn send(&self, bytes: impl Into<Bytes>) {
        self.send.send(bytes.into()).unwrap();
    }

    /// Sends the header of a message of `length` bytes and `part` of them.
    fn begin(&self, length: usize, part: usize) {
        let mut bytes = vec![0];
        bytes.extend((length as u32).to_be_bytes());
        bytes.resize(5 + part, 7);
        self.send(bytes);
    }

    /// The bytes that got through by now; `None`: nothing.
    fn got(&mut self) -> Option<Result<usize, Status>> {
        let frame = self.body.frame().now_or_never()??;
        Some(frame.map(|frame| frame.into_data().unwrap().len()))
    }
}

#[tokio::test(start_paused = true)]
async fn messages_in_part_share_a_budget_and_whole_ones_need_none() {
    let budget = ArrivalBudget::new(MAX_MESSAGE);
    let mut halves: Vec<Call> = (0..LARGEST_MESSAGES).map(|_| Call::new(&budget)).collect();
    for call in &mut halves {
        call.begin(MAX_MESSAGE, 10);
        assert_eq!(call.got().unwrap().unwrap(), 15);
    }
    let mut late = Call::new(&budget);
    late.begin(MAX_MESSAGE, 10);
    assert!(late.got().is_none());
    // What arrives at once passes, several in a part as well.
    let mut small = Call::new(&budget);
    small.send([&[0, 0, 0, 0, 1, 9][..], &[0, 0, 0, 0, 0]].concat());
    assert_eq!(small.got().unwrap().unwrap(), 11);
    // One that is whole gives its share back, and so does a call that ends.
    let first = halves.first_mut().unwrap();
    first.send(vec![7; MAX_MESSAGE - 10]);
    assert_eq!(first.got().unwrap().unwrap(), MAX_MESSAGE - 10);
    assert_eq!(late.got().unwrap().unwrap(), 15);
    first.begin(MAX_MESSAGE, 0);
    assert!(first.got().is_none());
    drop(late);
    assert_eq!(first.got().unwrap().unwrap(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_never_becomes_whole_ends_its_call() {
    let budget = ArrivalBudget::new(MAX_MESSAGE);
    let mut halves: Vec<Call> = (0..=LARGEST_MESSAGES).map(|_| Call::new(&budget)).collect();
    for call in &mut halves {
        call.begin(MAX_MESSAGE, 10);
        let _ = call.got();
    }
    let mut waits = halves.pop().unwrap();
    let mut idle = Call::new(&budget);
    assert!(idle.got().is_none());
    tokio::time::sleep(ARRIVAL_TIMEOUT).await;
    let late = halves[0].got().unwrap().unwrap_err();
    assert_eq!(late.code(), tonic::Code::DeadlineExceeded);
    let full = waits.got().unwrap().unwrap_err();
    assert_eq!(full.code(), tonic::Code::ResourceExhausted);
    // Between messages a call may be silent.
    assert!(idle.got().is_none());
    drop(halves);
    idle.begin(MAX_MESSAGE, 1);
    assert_eq!(idle.got().unwrap().unwrap(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_too_large_is_left_to_tonic() {
    let budget = ArrivalBudget::new(MAX_MESSAGE);
    let mut call = Call::new(&budget);
    call.begin(usize::from(u16::MAX) << 16, 10);
    assert_eq!(call.got().unwrap().unwrap(), 15);
    assert_eq!(
        budget.units.available_permits(),
        units_of(MAX_MESSAGE) * LARGEST_MESSAGES
    );
}

#[test]
fn framing_is_followed_however_the_bytes_are_cut() {
    let mut bytes = Vec::new();
    for length in [0_u32, 1, 300, 5] {
        bytes.push(0);
        bytes.extend(length.to_be_bytes());
        bytes.resize(bytes.len() + length as usize, 255);
    }
    for cut in 1..bytes.len() {
        let mut framing = Framing::default();
        let ends = bytes.chunks(cut).map(|part| framing.read(part));
        assert!(ends.last().unwrap(), "{cut}");
        assert_eq!(framing.arriving(), None, "{cut}");
    }
    let mut framing = Framing::default();
    assert!(framing.read(&bytes[..20]));
    assert_eq!(framing.arriving(), Some(300));
}
