//! What the frames of a stream mean: one classifier for every watchdog, for the commit, for the check of a finished stream and for its
//! usage (routing spec 10, decisions 7 and 9.9).

mod frames;
mod plain;

use super::Dialect;
use frames::{ChatChunk, MessagesEvent, ResponsesEvent, Usage as WireUsage};

/// What one frame does for the stream, weakest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Progress {
    /// Nothing: pings, empty text, comments.
    None,
    /// No frame of the dialect. It is relayed, counted, and is no progress.
    Malformed,
    /// A step of the protocol without content.
    Protocol,
    /// Reasoning or thinking, empty ones and signatures included.
    Reasoning,
    /// Text.
    Content,
    /// A tool call or part of one.
    ToolCall,
    /// A refusal.
    Refusal,
    /// The regular end.
    Terminal,
    /// An error frame. It is the last frame of a stream.
    Error,
}

impl Progress {
    /// True for frames that a client can use: the first one commits the answer (decisions 9.9).
    #[must_use]
    pub const fn commits(self) -> bool {
        matches!(self, Self::Reasoning | Self::Content | Self::ToolCall | Self::Refusal)
    }

    /// True for everything that restarts the idle deadline.
    #[must_use]
    pub const fn is_progress(self) -> bool {
        !matches!(self, Self::None | Self::Malformed)
    }

    /// True for content that ends the content-stall deadline for good: everything that commits, except reasoning.
    #[must_use]
    pub const fn is_content(self) -> bool {
        matches!(self, Self::Content | Self::ToolCall | Self::Refusal)
    }
}

/// Token counts as the vendor reports them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Tokens of the request.
    pub input: u64,
    /// Tokens of the answer.
    pub output: u64,
    /// Part of `input` that came from the vendor's cache.
    pub cached_input: u64,
    /// Part of `output` that was reasoning.
    pub reasoning: u64,
}

/// What a stream has said so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StreamFacts {
    /// Bytes of text.
    pub text_bytes: u64,
    /// Reasoning was seen.
    pub reasoning: bool,
    /// A tool call was seen.
    pub tool_call: bool,
    /// A refusal was seen.
    pub refusal: bool,
    /// Content of another kind (audio, images, output items of a finished response).
    pub other_content: bool,
    /// Why the vendor says it stopped (`stop`, `end_turn`, `completed`, …).
    pub finish_reason: Option<String>,
    /// The dialect's last frame was seen.
    pub terminal: bool,
    /// Frames that could not be read.
    pub malformed: u64,
    /// Frames of the dialect.
    pub frames: u64,
    /// The id of the answer.
    pub response_id: Option<String>,
    /// Responses: the sequence number that comes next.
    pub next_sequence: u64,
    /// Token counts.
    pub usage: Option<Usage>,
}

impl StreamFacts {
    /// Adds what the rest of the same answer has said, which came in a stream of its own.
    pub fn go_on_with(&mut self, rest: &Self) {
        self.text_bytes += rest.text_bytes;
        self.reasoning |= rest.reasoning;
        self.tool_call |= rest.tool_call;
        self.refusal |= rest.refusal;
        self.other_content |= rest.other_content;
        self.terminal |= rest.terminal;
        self.malformed += rest.malformed;
        self.frames += rest.frames;
        self.next_sequence = self.next_sequence.max(rest.next_sequence);
        self.finish_reason = rest.finish_reason.clone().or_else(|| self.finish_reason.take());
        self.response_id = self.response_id.take().or_else(|| rest.response_id.clone());
        // Both were billed.
        self.usage = match (self.usage, rest.usage) {
            (Some(a), Some(b)) => Some(Usage {
                input: a.input.saturating_add(b.input),
                output: a.output.saturating_add(b.output),
                cached_input: a.cached_input.saturating_add(b.cached_input),
                reasoning: a.reasoning.saturating_add(b.reasoning),
            }),
            (a, b) => a.or(b),
        };
    }

    /// True when the stream said that it is finished: its last frame, or for Chat a finish reason (some vendors send no `[DONE]`).
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.terminal || self.finish_reason.is_some()
    }

    /// True when there is something that a client can use. Reasoning alone is not (routing spec 10.2).
    #[must_use]
    pub const fn has_content(&self) -> bool {
        self.text_bytes > 0 || self.tool_call || self.refusal || self.other_content
    }

    /// True when an answer without content is what the vendor meant: it ran into a length, a filter or a tool (routing spec 10.6).
    #[must_use]
    pub fn explains_emptiness(&self) -> bool {
        self.finish_reason.as_deref().is_some_and(explains_emptiness)
    }
}

/// Finish reasons after which an answer without content is no failure.
#[must_use]
pub(super) fn explains_emptiness(reason: &str) -> bool {
    matches!(
        reason,
        "length"
            | "max_tokens"
            | "tool_calls"
            | "function_call"
            | "tool_use"
            | "content_filter"
            | "refusal"
            | "pause_turn"
            | "incomplete"
            | "max_output_tokens"
            | "model_context_window_exceeded"
    )
}

/// Reads frames in order.
#[derive(Debug)]
pub struct Classifier {
    dialect: Dialect,
    facts: StreamFacts,
}

impl Classifier {
    /// A classifier for a new stream.
    #[must_use]
    pub fn new(dialect: Dialect) -> Self {
        Self { dialect, facts: StreamFacts::default() }
    }

    /// What was seen so far.
    #[must_use]
    pub const fn facts(&self) -> &StreamFacts {
        &self.facts
    }

    /// Classifies one event: its name and its data.
    pub fn frame(&mut self, name: &[u8], data: &[u8]) -> Progress {
        let progress = match self.dialect {
            Dialect::ChatCompletions | Dialect::Embeddings => self.chat(name, data),
            Dialect::Messages => self.messages(name, data),
            Dialect::Responses => self.responses(name, data),
        };
        match progress {
            Progress::Malformed => self.facts.malformed += 1,
            _ => self.facts.frames += 1,
        }
        self.facts.terminal |= progress == Progress::Terminal;
        self.facts.reasoning |= progress == Progress::Reasoning;
        self.facts.tool_call |= progress == Progress::ToolCall;
        self.facts.refusal |= progress == Progress::Refusal;
        progress
    }

    /// A frame that was too long to be looked at: content, certainly.
    pub fn oversized(&mut self) -> Progress {
        self.facts.frames += 1;
        self.facts.other_content = true;
        Progress::Content
    }

    fn chat(&mut self, name: &[u8], data: &[u8]) -> Progress {
        let trimmed = data.trim_ascii();
        if trimmed == b"[DONE]" {
            return Progress::Terminal;
        }
        if trimmed.is_empty() {
            return Progress::None;
        }
        // The first frame has the id of the answer, and may be a step.
        if name != b"error"
            && self.facts.response_id.is_some()
            && let Some(bytes) = plain::text_only(trimmed)
        {
            self.facts.text_bytes += bytes;
            return Progress::Content;
        }
        self.chat_frame(name, trimmed)
    }

    /// A frame that is parsed.
    fn chat_frame(&mut self, name: &[u8], trimmed: &[u8]) -> Progress {
        let Ok(chunk) = serde_json::from_slice::<ChatChunk<'_>>(trimmed) else {
            return if name == b"error" { Progress::Error } else { Progress::Malformed };
        };
        let no_choice = chunk.choices.as_ref().is_none_or(Vec::is_empty);
        let failed = chunk.base_resp.is_some_and(frames::BaseResponse::failed) || (chunk.errors.0 && no_choice);
        if chunk.error.0 || failed || name == b"error" {
            return Progress::Error;
        }
        let facts = &mut self.facts;
        remember(&mut facts.response_id, chunk.id);
        merge_usage(&mut facts.usage, chunk.usage.as_ref());
        let mut best = Progress::None;
        // A usage-only chunk and the first role are steps; both also come with every empty chunk of some vendors, where they are none.
        let first = facts.frames == 0;
        let mut step = chunk.usage.is_some() && no_choice;
        for choice in chunk.choices.iter().flatten() {
            let delta = choice.delta.as_ref().or(choice.message.as_ref());
            step |= choice.finish_reason.is_some() || (first && delta.is_some_and(|d| d.role.is_some()));
            if let Some(reason) = choice.finish_reason.as_deref().filter(|r| !r.is_empty()) {
                facts.finish_reason = Some(reason.to_owned());
            }
            let text = choice.text.0 + delta.map_or(0, |d| d.content.0);
            facts.text_bytes += text;
            let Some(delta) = delta else {
                best = best.max(if text > 0 { Progress::Content } else { Progress::None });
                continue;
            };
            facts.other_content |= delta.audio.0 || delta.images.0 > 0;
            facts.reasoning |= delta.reasons();
            best = best.max(delta.progress());
        }
        if best == Progress::None && step { Progress::Protocol } else { best }
    }

    fn messages(&mut self, name: &[u8], data: &[u8]) -> Progress {
        let Ok(event) = serde_json::from_slice::<MessagesEvent<'_>>(data) else {
            return match name {
                b"error" => Progress::Error,
                b"ping" => Progress::None,
                _ => Progress::Malformed,
            };
        };
        let facts = &mut self.facts;
        let kind = event.kind.as_deref().or_else(|| std::str::from_utf8(name).ok()).unwrap_or_default();
        match kind {
            "ping" => Progress::None,
            "error" => Progress::Error,
            _ if event.error.0 => Progress::Error,
            "message_start" => {
                if let Some(message) = event.message {
                    remember(&mut facts.response_id, message.id);
                    merge_usage(&mut facts.usage, message.usage.as_ref());
                }
                Progress::Protocol
            }
            "content_block_start" => match event.content_block.as_ref().and_then(|b| b.kind.as_deref()) {
                Some("text") => {
                    text_progress(&mut facts.text_bytes, event.content_block.as_ref().map_or(0, |b| b.text.0), Progress::Protocol)
                }
                Some("thinking" | "redacted_thinking") => Progress::Reasoning,
                Some(kind) if kind.ends_with("tool_use") => Progress::ToolCall,
                Some(_) => {
                    facts.other_content = true;
                    Progress::Content
                }
                None => Progress::Protocol,
            },
            "content_block_delta" => match event.delta.as_ref().and_then(|d| d.kind.as_deref()) {
                Some("text_delta") => text_progress(&mut facts.text_bytes, event.delta.as_ref().map_or(0, |d| d.text.0), Progress::None),
                Some("thinking_delta" | "signature_delta") => Progress::Reasoning,
                Some("input_json_delta") => Progress::ToolCall,
                Some(_) => Progress::Content,
                None => Progress::Protocol,
            },
            "message_delta" => {
                merge_usage(&mut facts.usage, event.usage.as_ref());
                match event.delta.and_then(|d| d.stop_reason) {
                    Some(reason) => {
                        facts.refusal |= reason == "refusal";
                        facts.finish_reason = Some(reason.into_owned());
                        Progress::Protocol
                    }
                    None => Progress::Protocol,
                }
            }
            "message_stop" => Progress::Terminal,
            _ => Progress::Protocol,
        }
    }

    fn responses(&mut self, name: &[u8], data: &[u8]) -> Progress {
        if data.trim_ascii() == b"[DONE]" {
            return if self.facts.terminal { Progress::Protocol } else { Progress::Terminal };
        }
        let Ok(event) = serde_json::from_slice::<ResponsesEvent<'_>>(data) else {
            return if name == b"error" { Progress::Error } else { Progress::Malformed };
        };
        let facts = &mut self.facts;
        if let Some(n) = event.sequence_number {
            facts.next_sequence = n.saturating_add(1);
        }
        let kind = event.kind.as_deref().or_else(|| std::str::from_utf8(name).ok()).unwrap_or_default();
        if let Some(response) = event.response {
            remember(&mut facts.response_id, response.id);
            merge_usage(&mut facts.usage, response.usage.as_ref());
            if matches!(kind, "response.completed" | "response.incomplete") {
                facts.other_content |= response.output.has_content;
                facts.finish_reason = response.status.map(std::borrow::Cow::into_owned);
            }
        }
        match kind {
            "error" | "response.failed" => return Progress::Error,
            "response.completed" | "response.incomplete" => return Progress::Terminal,
            "response.output_text.delta" => return text_progress(&mut facts.text_bytes, event.delta.0, Progress::None),
            "response.output_item.added" => return item_progress(event.item.and_then(|i| i.kind).as_deref().unwrap_or_default()),
            "keepalive" | "ping" | "response.heartbeat" => return Progress::None,
            "" => return if event.error.0 { Progress::Error } else { Progress::Malformed },
            _ => {}
        }
        if kind.contains("reasoning") {
            Progress::Reasoning
        } else if kind.contains("refusal") {
            Progress::Refusal
        } else if kind.contains("arguments") || kind.contains("_call") {
            Progress::ToolCall
        } else if kind.ends_with(".delta") || kind.contains("partial_image") {
            facts.other_content = true;
            Progress::Content
        } else {
            Progress::Protocol
        }
    }
}

/// What the start of an output item of the Responses dialect is.
fn item_progress(kind: &str) -> Progress {
    match kind {
        "reasoning" => Progress::Reasoning,
        k if k.ends_with("_call") => Progress::ToolCall,
        _ => Progress::Protocol,
    }
}

fn text_progress(total: &mut u64, bytes: u64, empty: Progress) -> Progress {
    *total += bytes;
    if bytes > 0 { Progress::Content } else { empty }
}

fn remember(slot: &mut Option<String>, id: Option<std::borrow::Cow<'_, str>>) {
    if slot.is_none()
        && let Some(id) = id.filter(|i| !i.is_empty() && i.len() <= 256)
    {
        *slot = Some(id.into_owned());
    }
}

fn merge_usage(slot: &mut Option<Usage>, wire: Option<&WireUsage>) {
    if let Some(wire) = wire {
        let known = slot.get_or_insert_default();
        known.input = known.input.max(wire.input());
        known.output = known.output.max(wire.output());
        known.cached_input = known.cached_input.max(wire.cached());
        known.reasoning = known.reasoning.max(wire.reasoning());
    }
}

/// Reads the usage object of a finished answer.
pub(super) fn usage_of(wire: Option<&WireUsage>) -> Option<Usage> {
    let mut usage = None;
    merge_usage(&mut usage, wire);
    usage
}

pub(super) use frames::{BaseResponse, Block, ChatChoice, Count, Details, Output, Present, Usage as UsageObject};

#[cfg(test)]
#[path = "progress_tests.rs"]
mod tests;
