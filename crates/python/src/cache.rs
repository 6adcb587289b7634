//! Reports of a Python executor's cache on their way to the worker: takes the columns of a `CacheChanges` object.
//!
//! Owns the layout of `python/inflight/executors/base.py`'s `CacheChanges`. What becomes of the blocks is the worker's.

use inflight_worker::executor::{CacheBlocks, CacheReports, Level, Origin, Parent};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;

use crate::columns::{Ragged, unpack};
use crate::response::{column, sparse};

/// Whose method `report` an executor calls with what has changed.
#[pyclass(frozen, name = "CacheReports", module = "inflight._native")]
pub(crate) struct PyCacheReports {
    reports: CacheReports,
    tokens_per_block: usize,
}

impl PyCacheReports {
    pub(crate) fn new(reports: CacheReports, tokens_per_block: u32) -> Self {
        Self {
            reports,
            tokens_per_block: tokens_per_block as usize,
        }
    }
}

#[pymethods]
impl PyCacheReports {
    /// Takes an `inflight.executors.base.CacheChanges`.
    ///
    /// # Errors
    /// `TypeError` for an attribute of the wrong type, `ValueError` for columns that do not fit together; then none
    /// of the changes is made.
    fn report(&self, changes: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = changes.py();
        let kinds = column(changes, intern!(py, "kinds"))?;
        let names = column(changes, intern!(py, "names"))?;
        let parents = column(changes, intern!(py, "parents"))?;
        let token_ids = column(changes, intern!(py, "token_ids"))?;
        let changes = Changes::read(
            kinds.as_bytes(),
            names.as_bytes(),
            parents.as_bytes(),
            token_ids.as_bytes(),
            sparse(changes, intern!(py, "firsts"))?,
            self.tokens_per_block,
        )
        .map_err(|problem| PyValueError::new_err(problem.to_string()))?;
        self.reports.report(|blocks| changes.make(blocks));
        Ok(())
    }
}

/// Columns that do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Problem {
    #[error(transparent)]
    Ragged(#[from] Ragged),
    #[error("change {place} has the unknown kind `{kind}`")]
    Kind { place: usize, kind: u8 },
    #[error("column `{column}` has {found} values, expected {expected}")]
    Length {
        column: &'static str,
        found: usize,
        expected: usize,
    },
    #[error("column `firsts`: {0} is not the number of a stored block, or comes too late")]
    First(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Cleared,
    Stored(Level),
    Moved(Level),
    Removed,
}

impl Kind {
    fn read((place, kind): (usize, &u8)) -> Result<Self, Problem> {
        Ok(match *kind {
            0 => Self::Cleared,
            1 => Self::Stored(Level::Device),
            2 => Self::Stored(Level::Host),
            3 => Self::Moved(Level::Device),
            4 => Self::Moved(Level::Host),
            5 => Self::Removed,
            kind => return Err(Problem::Kind { place, kind }),
        })
    }
}

/// Columns that fit together.
#[derive(Debug)]
struct Changes {
    kinds: Vec<Kind>,
    names: Vec<u64>,
    /// Of the stored ones.
    parents: Vec<Before>,
    /// Of those among them that are the first of a sequence.
    origins: Vec<Origin>,
    token_ids: Vec<i32>,
    tokens_per_block: usize,
}

/// What comes before a stored block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Block(u64),
    /// Nothing; the place of its origin.
    Origin(usize),
}

/// Number among the stored, adapter, salt.
type First = (u32, Option<u64>, Vec<u8>);

impl Changes {
    fn read(
        kinds: &[u8],
        names: &[u8],
        parents: &[u8],
        token_ids: &[u8],
        firsts: Vec<First>,
        tokens_per_block: usize,
    ) -> Result<Self, Problem> {
        let kinds = kinds.iter().enumerate().map(Kind::read);
        let kinds: Vec<Kind> = kinds.collect::<Result<_, _>>()?;
        let names = unpack("names", names, u64::from_le_bytes)?;
        let parents = unpack("parents", parents, u64::from_le_bytes)?;
        let mut parents: Vec<Before> = parents.into_iter().map(Before::Block).collect();
        let token_ids = unpack("token_ids", token_ids, i32::from_le_bytes)?;
        let stored = kinds.iter().filter(|kind| matches!(kind, Kind::Stored(_)));
        let stored = stored.count();
        for (column, found, expected) in [
            ("names", names.len(), kinds.len()),
            ("parents", parents.len(), stored),
            (
                "token_ids",
                token_ids.len(),
                stored.saturating_mul(tokens_per_block),
            ),
        ] {
            if found != expected {
                return Err(Problem::Length {
                    column,
                    found,
                    expected,
                });
            }
        }
        let mut origins = Vec::with_capacity(firsts.len());
        for (number, lora_task_id, salt) in firsts {
            let parent = parents.get_mut(number as usize);
            let parent = parent.ok_or(Problem::First(number))?;
            *parent = Before::Origin(origins.len());
            origins.push(Origin { lora_task_id, salt });
        }
        Ok(Self {
            kinds,
            names,
            parents,
            origins,
            token_ids,
            tokens_per_block,
        })
    }

    fn make(&self, blocks: &mut CacheBlocks) {
        // No executor has blocks of no tokens; one would get no keys.
        let tokens = self.token_ids.chunks_exact(self.tokens_per_block.max(1));
        let mut stored = self.parents.iter().zip(tokens);
        for (kind, name) in self.kinds.iter().zip(&self.names) {
            match kind {
                Kind::Cleared => blocks.cleared(),
                Kind::Moved(level) => blocks.moved(*name, *level),
                Kind::Removed => blocks.removed(*name),
                Kind::Stored(level) => {
                    let Some((before, tokens)) = stored.next() else {
                        continue;
                    };
                    let parent = match before {
                        Before::Block(name) => Some(Parent::Block(*name)),
                        Before::Origin(place) => self.origins.get(*place).map(Parent::First),
                    };
                    if let Some(parent) = parent {
                        blocks.stored(*name, parent, tokens, *level);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<const N: usize, T: Copy>(values: &[T], to_bytes: fn(T) -> [u8; N]) -> Vec<u8> {
        values.iter().flat_map(|value| to_bytes(*value)).collect()
    }

    fn read(
        kinds: &[u8],
        names: &[u64],
        parents: &[u64],
        tokens: &[i32],
        firsts: &[First],
    ) -> Result<Changes, Problem> {
        Changes::read(
            kinds,
            &bytes(names, u64::to_le_bytes),
            &bytes(parents, u64::to_le_bytes),
            &bytes(tokens, i32::to_le_bytes),
            firsts.to_vec(),
            2,
        )
    }

    #[test]
    fn columns_are_read_in_order() {
        let firsts = [(0, Some(7), b"salt".to_vec())];
        let changes = read(
            &[1, 2, 4, 3, 5, 0],
            &[8, 9, 8, 8, 9, 0],
            &[5, 8],
            &[1, 2, 3, 4],
            &firsts,
        );
        let changes = changes.unwrap();
        assert_eq!(
            changes.kinds,
            [
                Kind::Stored(Level::Device),
                Kind::Stored(Level::Host),
                Kind::Moved(Level::Host),
                Kind::Moved(Level::Device),
                Kind::Removed,
                Kind::Cleared,
            ]
        );
        let origin = Origin {
            lora_task_id: Some(7),
            salt: b"salt".to_vec(),
        };
        assert_eq!(changes.parents, [Before::Origin(0), Before::Block(8)]);
        assert_eq!(changes.origins, [origin]);
    }

    #[test]
    fn columns_that_do_not_fit_are_refused() {
        let length = |column, found, expected| Problem::Length {
            column,
            found,
            expected,
        };
        let cases = [
            (
                read(&[6], &[1], &[], &[], &[]),
                Problem::Kind { place: 0, kind: 6 },
            ),
            (read(&[5], &[], &[], &[], &[]), length("names", 0, 1)),
            (read(&[1], &[1], &[], &[1, 2], &[]), length("parents", 0, 1)),
            (read(&[1], &[1], &[0], &[1], &[]), length("token_ids", 1, 2)),
            (read(&[5], &[1], &[0], &[], &[]), length("parents", 1, 0)),
            (
                read(&[1], &[1], &[0], &[1, 2], &[(1, None, Vec::new())]),
                Problem::First(1),
            ),
        ];
        for (read, expected) in cases {
            assert_eq!(read.unwrap_err(), expected);
        }
        let ragged = Changes::read(&[5], &[0; 7], &[], &[], Vec::new(), 2).unwrap_err();
        assert!(matches!(ragged, Problem::Ragged(_)));
    }
}
