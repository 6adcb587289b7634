//! `parking_lot`'s locks, as loom has them. Owns the difference: a guard that is waited with stays in its place.

use std::ops::{Deref, DerefMut};

pub use crate::stand_ins::Notify;

#[derive(Debug)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

pub struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().unwrap()))
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().unwrap()
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().unwrap()
    }
}

#[derive(Debug)]
pub struct Condvar(loom::sync::Condvar);

impl Default for Condvar {
    fn default() -> Self {
        Self(loom::sync::Condvar::new())
    }
}

impl Condvar {
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let inner = guard.0.take().unwrap();
        guard.0 = Some(self.0.wait(inner).unwrap());
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }
}
