//! The store on both engines, by subject.

mod bounds;
mod engines;
mod helpers;
mod holders;
mod kept;
mod lives;
mod objects;
mod owners;
