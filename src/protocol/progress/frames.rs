//! The parts of stream frames that are looked at. Everything else is skipped by the parser without being kept.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::Progress;

/// How many bytes of text a value has: a string, or parts with `text`, `thinking` or `content`. Never fails on another type.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::protocol) struct Amount(pub u64);

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Amount;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }
            fn visit_str<E>(self, s: &str) -> Result<Amount, E> {
                Ok(Amount(s.len() as u64))
            }
            fn visit_unit<E>(self) -> Result<Amount, E> {
                Ok(Amount(0))
            }
            fn visit_bool<E>(self, _: bool) -> Result<Amount, E> {
                Ok(Amount(0))
            }
            fn visit_i64<E>(self, _: i64) -> Result<Amount, E> {
                Ok(Amount(0))
            }
            fn visit_u64<E>(self, _: u64) -> Result<Amount, E> {
                Ok(Amount(0))
            }
            fn visit_f64<E>(self, _: f64) -> Result<Amount, E> {
                Ok(Amount(0))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Amount, A::Error> {
                let mut sum = 0;
                while let Some(Amount(n)) = seq.next_element()? {
                    sum += n;
                }
                Ok(Amount(sum))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Amount, A::Error> {
                let mut sum = 0;
                while let Some(key) = map.next_key::<Cow<'de, str>>()? {
                    if matches!(&*key, "text" | "thinking" | "content" | "refusal") {
                        sum += map.next_value::<Amount>()?.0;
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(Amount(sum))
            }
        }
        d.deserialize_any(V)
    }
}

/// Whether a value is there: anything but `null`, `false`, an empty string and an empty object.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::protocol) struct Present(pub bool);

impl<'de> Deserialize<'de> for Present {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Present;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }
            fn visit_str<E>(self, s: &str) -> Result<Present, E> {
                Ok(Present(!s.is_empty()))
            }
            fn visit_unit<E>(self) -> Result<Present, E> {
                Ok(Present(false))
            }
            fn visit_bool<E>(self, b: bool) -> Result<Present, E> {
                Ok(Present(b))
            }
            fn visit_i64<E>(self, _: i64) -> Result<Present, E> {
                Ok(Present(true))
            }
            fn visit_u64<E>(self, _: u64) -> Result<Present, E> {
                Ok(Present(true))
            }
            fn visit_f64<E>(self, _: f64) -> Result<Present, E> {
                Ok(Present(true))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Present, A::Error> {
                let mut any = false;
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    any = true;
                }
                Ok(Present(any))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Present, A::Error> {
                let mut any = false;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    any = true;
                }
                Ok(Present(any))
            }
        }
        d.deserialize_any(V)
    }
}

/// The number of elements of a list; 0 for anything else.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::protocol) struct Count(pub u64);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Ok(Self(Option::<Vec<IgnoredAny>>::deserialize(d)?.map_or(0, |v| v.len() as u64)))
    }
}

#[derive(Deserialize, Debug)]
pub(in crate::protocol) struct ChatChunk<'a> {
    #[serde(borrow, default)]
    pub id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub choices: Option<Vec<ChatChoice<'a>>>,
    #[serde(default)]
    pub error: Present,
    #[serde(default)]
    pub errors: Present,
    #[serde(default)]
    pub base_resp: Option<BaseResponse>,
    #[serde(default)]
    pub usage: Option<Usage>,
}

/// How some vendors say inside a 200 whether it went well.
#[derive(Deserialize, Clone, Copy, Debug)]
#[serde(untagged)]
pub(in crate::protocol) enum BaseResponse {
    Said { status_code: i64 },
    Other(IgnoredAny),
}

impl BaseResponse {
    /// True for an error.
    pub const fn failed(self) -> bool {
        matches!(self, Self::Said { status_code } if status_code != 0)
    }
}

#[derive(Deserialize, Debug)]
pub(in crate::protocol) struct ChatChoice<'a> {
    #[serde(borrow, default)]
    pub delta: Option<ChatDelta<'a>>,
    #[serde(borrow, default)]
    pub message: Option<ChatDelta<'a>>,
    #[serde(default)]
    pub text: Amount,
    #[serde(borrow, default)]
    pub finish_reason: Option<Cow<'a, str>>,
}

#[derive(Deserialize, Debug)]
pub(in crate::protocol) struct ChatDelta<'a> {
    #[serde(borrow, default)]
    pub role: Option<Cow<'a, str>>,
    #[serde(default)]
    pub content: Amount,
    #[serde(default)]
    pub refusal: Amount,
    #[serde(default)]
    pub reasoning_content: Option<Amount>,
    #[serde(default)]
    pub reasoning: Option<Amount>,
    #[serde(default)]
    pub reasoning_details: Present,
    #[serde(default)]
    pub tool_calls: Option<Count>,
    #[serde(default)]
    pub function_call: Present,
    #[serde(default)]
    pub audio: Present,
    #[serde(default)]
    pub images: Count,
}

impl ChatDelta<'_> {
    /// A reasoning member is there; an empty string counts in a delta (routing spec 10.2), unless text comes with it.
    pub fn reasons(&self) -> bool {
        self.reasoning_content.is_some() || self.reasoning.is_some() || self.reasoning_details.0
    }

    pub fn calls_tools(&self) -> bool {
        self.tool_calls.is_some_and(|c| c.0 > 0) || self.function_call.0
    }

    pub fn progress(&self) -> Progress {
        if self.refusal.0 > 0 {
            Progress::Refusal
        } else if self.calls_tools() {
            Progress::ToolCall
        } else if self.content.0 > 0 || self.audio.0 || self.images.0 > 0 {
            Progress::Content
        } else if self.reasons() {
            Progress::Reasoning
        } else {
            Progress::None
        }
    }
}

#[derive(Deserialize, Debug)]
pub(in crate::protocol) struct MessagesEvent<'a> {
    #[serde(borrow, default, rename = "type")]
    pub kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub message: Option<MessageHead<'a>>,
    #[serde(borrow, default)]
    pub content_block: Option<Block<'a>>,
    #[serde(borrow, default)]
    pub delta: Option<Block<'a>>,
    #[serde(default)]
    pub usage: Option<Usage>,
    #[serde(default)]
    pub error: Present,
}

#[derive(Deserialize, Debug)]
pub(in crate::protocol) struct MessageHead<'a> {
    #[serde(borrow, default)]
    pub id: Option<Cow<'a, str>>,
    #[serde(default)]
    pub usage: Option<Usage>,
}

#[derive(Deserialize, Debug)]
pub(in crate::protocol) struct Block<'a> {
    #[serde(borrow, default, rename = "type")]
    pub kind: Option<Cow<'a, str>>,
    #[serde(default)]
    pub text: Amount,
    #[serde(borrow, default)]
    pub stop_reason: Option<Cow<'a, str>>,
}

#[derive(Deserialize, Debug)]
pub(in crate::protocol) struct ResponsesEvent<'a> {
    #[serde(borrow, default, rename = "type")]
    pub kind: Option<Cow<'a, str>>,
    #[serde(default)]
    pub sequence_number: Option<u64>,
    #[serde(default)]
    pub delta: Amount,
    #[serde(borrow, default)]
    pub item: Option<Item<'a>>,
    #[serde(borrow, default)]
    pub response: Option<ResponseHead<'a>>,
    #[serde(default)]
    pub error: Present,
}

#[derive(Deserialize, Debug)]
pub(in crate::protocol) struct Item<'a> {
    #[serde(borrow, default, rename = "type")]
    pub kind: Option<Cow<'a, str>>,
    #[serde(default)]
    pub content: Amount,
}

#[derive(Deserialize, Debug)]
pub(in crate::protocol) struct ResponseHead<'a> {
    #[serde(borrow, default)]
    pub id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub status: Option<Cow<'a, str>>,
    #[serde(default)]
    pub usage: Option<Usage>,
    #[serde(default)]
    pub output: Output,
}

/// Whether the output items of a response have something that a client can use: anything but empty messages and reasoning.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::protocol) struct Output {
    pub has_content: bool,
    pub is_list: bool,
}

impl<'de> Deserialize<'de> for Output {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let Some(items) = Option::<Vec<Item<'de>>>::deserialize(d)? else { return Ok(Self::default()) };
        let has_content = items.iter().any(|i| match i.kind.as_deref() {
            Some("reasoning") => false,
            Some("message") | None => i.content.0 > 0,
            Some(_) => true,
        });
        Ok(Self { has_content, is_list: true })
    }
}

/// Token counts under the names of all dialects.
#[derive(Deserialize, Clone, Copy, Debug, Default)]
#[serde(default)]
pub(in crate::protocol) struct Usage {
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    pub prompt_tokens_details: Option<Details>,
    input_tokens_details: Option<Details>,
    pub completion_tokens_details: Option<Details>,
    output_tokens_details: Option<Details>,
}

#[derive(Deserialize, Clone, Copy, Debug, Default)]
#[serde(default)]
pub(in crate::protocol) struct Details {
    pub cached_tokens: Option<u64>,
    pub reasoning_tokens: Option<u64>,
}

impl Usage {
    /// Messages counts cached tokens beside `input_tokens`, the OpenAI dialects inside.
    pub fn input(&self) -> u64 {
        let beside = self.cache_read_input_tokens.unwrap_or(0).saturating_add(self.cache_creation_input_tokens.unwrap_or(0));
        self.prompt_tokens.or(self.input_tokens).unwrap_or(0).saturating_add(beside)
    }

    pub fn output(&self) -> u64 {
        self.completion_tokens.or(self.output_tokens).unwrap_or(0)
    }

    pub fn cached(&self) -> u64 {
        let details = self.prompt_tokens_details.or(self.input_tokens_details).and_then(|d| d.cached_tokens);
        self.cache_read_input_tokens.or(details).unwrap_or(0)
    }

    pub fn reasoning(&self) -> u64 {
        self.completion_tokens_details.or(self.output_tokens_details).and_then(|d| d.reasoning_tokens).unwrap_or(0)
    }
}
