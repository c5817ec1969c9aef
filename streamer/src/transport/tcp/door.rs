//! Which connection is taken and which is refused, and in what words.
//!
//! One transfer gets in: the first control connection with a good Hello, and one connection for
//! each of its shards. A shard may come before its control connection; it then waits, not for long
//! and with not too many others, to learn which image is received.
//!
//! Connections are whatever the caller has: nothing here does I/O or looks at the clock.

use std::time::{Duration, Instant};

use super::protocol::{Hello, Role};
use crate::format::{ImageId, MAX_SHARDS};

/// A connection that was taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrival<C> {
    /// The control connection.
    Control { connection: C, peer: String, shards: u32, version: u32, image: ImageId },
    /// That of a shard.
    Shard { connection: C, number: u32 },
}

/// What becomes of a connection, and of those that waited for it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Decision<C> {
    pub(super) taken: Vec<Arrival<C>>,
    pub(super) refused: Vec<(C, String)>,
}

#[derive(Debug)]
pub(super) struct Door<C> {
    transfer: Option<Transfer>,
    waiting: Vec<Waiting<C>>,
    patience: Duration,
}

#[derive(Debug)]
struct Transfer {
    image: ImageId,
    peer: String,
    /// Which shards are here.
    here: Vec<bool>,
}

#[derive(Debug)]
struct Waiting<C> {
    connection: C,
    image: ImageId,
    number: u32,
    since: Instant,
}

impl<C> Door<C> {
    /// `patience` is how long a shard waits for its control connection.
    pub(super) fn new(patience: Duration) -> Self {
        Door { transfer: None, waiting: Vec::new(), patience }
    }

    /// Decides on a connection that said this Hello.
    pub(super) fn admit(
        &mut self,
        hello: &Hello,
        peer: &str,
        connection: C,
        now: Instant,
    ) -> Decision<C> {
        let mut decision = Decision { taken: Vec::new(), refused: Vec::new() };
        let patience = self.patience;
        let late = |waiting: &mut Waiting<C>| now.duration_since(waiting.since) > patience;
        for waiting in self.waiting.extract_if(.., late) {
            let reason = format!("shard {} came without a control connection", waiting.number);
            decision.refused.push((waiting.connection, reason));
        }
        match (&hello.role, &mut self.transfer) {
            (Role::Control { .. }, Some(transfer)) => {
                let Transfer { image, peer, .. } = transfer;
                let reason = format!("busy: this receiver takes one image, {image} from {peer}");
                decision.refused.push((connection, reason));
            }
            (Role::Control { shards, .. }, None) => {
                let here = vec![false; *shards as usize];
                let image = hello.image;
                let (shards, version, peer) = (*shards, hello.version(), peer.to_owned());
                let transfer = Transfer { image, peer: peer.clone(), here };
                let transfer = self.transfer.insert(transfer);
                decision.taken.push(Arrival::Control { connection, peer, shards, version, image });
                for waiting in self.waiting.drain(..) {
                    transfer.shard(
                        waiting.image,
                        waiting.number,
                        waiting.connection,
                        &mut decision,
                    );
                }
            }
            (Role::Shard(number), Some(transfer)) => {
                transfer.shard(hello.image, *number, connection, &mut decision);
            }
            (Role::Shard(number), None) if self.waiting.len() < MAX_SHARDS as usize => {
                let (number, image) = (*number, hello.image);
                self.waiting.push(Waiting { connection, image, number, since: now });
            }
            (Role::Shard(_), None) => {
                let reason = "too many shard connections without a control connection".to_owned();
                decision.refused.push((connection, reason));
            }
        }
        decision
    }
}

impl Transfer {
    fn shard<C>(&mut self, image: ImageId, number: u32, connection: C, decision: &mut Decision<C>) {
        let count = self.here.len();
        let reason = match self.here.get_mut(number as usize) {
            _ if image != self.image => {
                format!("busy: this receiver takes image {}, not {image}", self.image)
            }
            None => format!("shard {number} of an image of {count} shards"),
            Some(true) => format!("shard {number} is there already"),
            Some(here) => {
                *here = true;
                decision.taken.push(Arrival::Shard { connection, number });
                return;
            }
        };
        decision.refused.push((connection, reason));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: ImageId = ImageId([1; 16]);
    const OTHER: ImageId = ImageId([2; 16]);

    fn control(image: ImageId, shards: u32) -> Hello {
        Hello::new(image, Role::Control { shards, writer: "test".into() })
    }

    fn shard(image: ImageId, number: u32) -> Hello {
        Hello::new(image, Role::Shard(number))
    }

    /// Connections are numbered in the order in which they come.
    struct Visitors(Door<usize>, usize, Instant);

    impl Visitors {
        fn new() -> Self {
            Visitors(Door::new(Duration::from_secs(1)), 0, Instant::now())
        }

        /// The connections taken, and those refused with their reasons.
        fn come(&mut self, hello: &Hello) -> (Vec<usize>, Vec<(usize, String)>) {
            let number = self.1;
            self.1 += 1;
            let decision = self.0.admit(hello, "peer", number, self.2);
            let taken = decision.taken.into_iter().map(|arrival| match arrival {
                Arrival::Control { connection, .. } | Arrival::Shard { connection, .. } => {
                    connection
                }
            });
            (taken.collect(), decision.refused)
        }
    }

    #[test]
    fn shards_wait_for_their_control_connection() {
        let mut door = Visitors::new();
        assert_eq!(door.come(&shard(IMAGE, 1)), (vec![], vec![]));
        assert_eq!(door.come(&shard(OTHER, 0)), (vec![], vec![]));
        let (taken, refused) = door.come(&control(IMAGE, 2));
        assert_eq!(taken, [2, 0]);
        assert_eq!(refused[0].0, 1);
        assert!(refused[0].1.contains(&OTHER.to_string()), "{refused:?}");
        assert_eq!(door.come(&shard(IMAGE, 0)), (vec![3], vec![]));
    }

    #[test]
    fn a_second_transfer_and_wrong_shards_are_refused() {
        let mut door = Visitors::new();
        assert_eq!(door.come(&control(IMAGE, 2)).0, [0]);
        assert_eq!(door.come(&shard(IMAGE, 0)).0, [1]);
        for (hello, words) in [
            (control(OTHER, 1), "busy"),
            (control(IMAGE, 2), "busy"),
            (shard(IMAGE, 0), "there already"),
            (shard(IMAGE, 2), "shard 2 of an image of 2 shards"),
            (shard(OTHER, 1), "busy"),
        ] {
            let (taken, refused) = door.come(&hello);
            assert!(taken.is_empty(), "{hello:?}");
            assert!(refused[0].1.contains(words), "{refused:?}");
        }
        assert_eq!(door.come(&shard(IMAGE, 1)).0, [7]);
    }

    #[test]
    fn not_many_wait_and_not_for_long() {
        let mut door = Visitors::new();
        for _ in 0..MAX_SHARDS {
            assert_eq!(door.come(&shard(IMAGE, 0)), (vec![], vec![]));
        }
        assert_eq!(door.come(&shard(IMAGE, 0)).1.len(), 1);
        door.2 += Duration::from_secs(2);
        assert_eq!(door.come(&shard(IMAGE, 0)).1.len(), MAX_SHARDS as usize);
        assert_eq!(door.0.waiting.len(), 1);
    }
}
