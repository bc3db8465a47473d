//! Collects what this thread traces: spans with their fields, and log lines with the spans they are in.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Metadata, Subscriber};
use tracing_core::span::Current;

pub(super) type Fields = BTreeMap<String, String>;

/// One span as it stands.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) name: &'static str,
    pub(super) fields: Fields,
    pub(super) was_entered: bool,
    pub(super) is_closed: bool,
    parent: Option<usize>,
    metadata: &'static Metadata<'static>,
    handles: usize,
}

/// One log line.
#[derive(Debug, Clone)]
pub(super) struct Line {
    pub(super) text: String,
    /// The spans around it, the innermost first.
    pub(super) spans: Vec<(&'static str, Fields)>,
}

#[derive(Debug, Default)]
struct Traced {
    spans: Vec<Seen>,
    lines: Vec<Line>,
    entered: Vec<usize>,
}

/// Everything that was traced since its start.
#[derive(Debug, Clone, Default)]
pub(super) struct Spans(Arc<Mutex<Traced>>);

impl Spans {
    /// From now on this thread traces into it, until the guard is dropped.
    pub(super) fn collect() -> (Self, DefaultGuard) {
        let spans = Self::default();
        let guard = tracing::subscriber::set_default(spans.clone());
        (spans, guard)
    }

    /// The spans of this name, in the order of their start.
    pub(super) fn named(&self, name: &str) -> Vec<Seen> {
        let mut spans = self.traced().spans.clone();
        spans.retain(|it| it.name == name);
        spans
    }

    /// The name of the span around this one.
    pub(super) fn parent_of(&self, span: &Seen) -> &'static str {
        let parent = span.parent.expect("it has a parent");
        self.traced().spans[parent].name
    }

    /// The lines that say this.
    pub(super) fn lines(&self, text: &str) -> Vec<Line> {
        let mut lines = self.traced().lines.clone();
        lines.retain(|it| it.text.contains(text));
        lines
    }

    /// Every value of every span.
    pub(super) fn values(&self) -> Vec<String> {
        let traced = self.traced();
        let fields = traced.spans.iter().flat_map(|it| &it.fields);
        fields
            .map(|(name, value)| format!("{name}={value}"))
            .collect()
    }

    fn traced(&self) -> MutexGuard<'_, Traced> {
        self.0.lock().expect("nobody panics while it looks")
    }
}

impl Traced {
    fn around(&self, innermost: Option<usize>) -> Vec<(&'static str, Fields)> {
        let mut spans = Vec::new();
        let mut at = innermost;
        while let Some(span) = at.map(|it| &self.spans[it]) {
            spans.push((span.name, span.fields.clone()));
            at = span.parent;
        }
        spans
    }

    /// A span is over when its last handle and its last child are gone.
    fn release(&mut self, at: usize) {
        let span = &mut self.spans[at];
        span.handles -= 1;
        if span.handles == 0 {
            span.is_closed = true;
            if let Some(parent) = span.parent {
                self.release(parent);
            }
        }
    }
}

struct Values<'a>(&'a mut Fields);

impl Visit for Values<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}

fn index(id: &Id) -> usize {
    usize::try_from(id.into_u64()).expect("it was an index") - 1
}

impl Subscriber for Spans {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut traced = self.traced();
        let parent = match span.parent() {
            Some(parent) => Some(index(parent)),
            None if span.is_contextual() => traced.entered.last().copied(),
            None => None,
        };
        if let Some(parent) = parent {
            traced.spans[parent].handles += 1;
        }
        let mut fields = Fields::new();
        span.record(&mut Values(&mut fields));
        traced.spans.push(Seen {
            name: span.metadata().name(),
            fields,
            was_entered: false,
            is_closed: false,
            parent,
            metadata: span.metadata(),
            handles: 1,
        });
        Id::from_u64(traced.spans.len() as u64)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        values.record(&mut Values(&mut self.traced().spans[index(span)].fields));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut traced = self.traced();
        let mut fields = Fields::new();
        event.record(&mut Values(&mut fields));
        let spans = traced.around(traced.entered.last().copied());
        let text = fields
            .into_iter()
            .map(|(name, value)| format!("{name}={value} "));
        let text = text.collect();
        traced.lines.push(Line { text, spans });
    }

    fn enter(&self, span: &Id) {
        let mut traced = self.traced();
        traced.spans[index(span)].was_entered = true;
        traced.entered.push(index(span));
    }

    fn exit(&self, span: &Id) {
        let mut traced = self.traced();
        let at = traced.entered.iter().rposition(|it| *it == index(span));
        traced.entered.remove(at.expect("it was entered"));
    }

    fn clone_span(&self, span: &Id) -> Id {
        self.traced().spans[index(span)].handles += 1;
        span.clone()
    }

    fn try_close(&self, span: Id) -> bool {
        let mut traced = self.traced();
        traced.release(index(&span));
        traced.spans[index(&span)].is_closed
    }

    fn current_span(&self) -> Current {
        let traced = self.traced();
        match traced.entered.last() {
            Some(at) => Current::new(Id::from_u64(*at as u64 + 1), traced.spans[*at].metadata),
            None => Current::none(),
        }
    }
}
