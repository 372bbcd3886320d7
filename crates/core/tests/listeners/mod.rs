//! Listeners for operations in tests.

use std::sync::Mutex;

use holdfast_core::event::{Event, Listener};

/// Prints what a user would be told.
pub(crate) struct Told;

impl Listener for Told {
    fn event(&self, event: Event) {
        match event {
            Event::Note { text } => println!("note: {text}"),
            Event::Warning { text } => println!("warning: {text}"),
            _ => {}
        }
    }
}

/// The same, and keeps the warnings.
#[derive(Default)]
pub(crate) struct Warnings(Mutex<Vec<String>>);

impl Warnings {
    /// The warnings so far.
    pub(crate) fn heard(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Listener for Warnings {
    fn event(&self, event: Event) {
        if let Event::Warning { text } = &event {
            self.0.lock().unwrap().push(text.clone());
        }
        Told.event(event);
    }
}
