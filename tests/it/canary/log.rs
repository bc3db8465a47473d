//! Everything that anybody logs, at every level, into a file.

use std::fmt::{Debug, Write as _};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

struct Log {
    file: Mutex<File>,
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a text never fails.
        let _ = write!(self.0, " {field}={value:?}");
    }
}

impl Log {
    fn write(&self, metadata: &Metadata<'_>, record: impl FnOnce(&mut Line)) {
        let mut line = Line(format!(
            "{} {} {}",
            metadata.level(),
            metadata.target(),
            metadata.name()
        ));
        record(&mut line);
        let mut file = self.file.lock().expect("nobody panicked");
        writeln!(file, "{}", line.0).expect("the log is written");
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.write(span.metadata(), |line| span.record(line));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        let mut line = Line("SPAN".to_owned());
        values.record(&mut line);
        let mut file = self.file.lock().expect("nobody panicked");
        writeln!(file, "{}", line.0).expect("the log is written");
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.write(event.metadata(), |line| event.record(line));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// From now on this process logs into the file.
pub(super) fn write_to(path: &Path) {
    let file = Mutex::new(File::create(path).expect("a file"));
    tracing::subscriber::set_global_default(Log { file }).expect("nobody else logs");
}
