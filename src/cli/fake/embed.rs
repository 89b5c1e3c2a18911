//! Embeddings: short vectors, as numbers or in base64 as the client asks.

use base64::Engine;
use serde_json::{Value, json};

use super::reply::Content;

/// Numbers of a vector.
const DIMENSIONS: u64 = 8;

pub(super) fn answer(c: &Content, request: &Value) -> Value {
    let inputs = request.get("input").and_then(Value::as_array).filter(|a| a.iter().all(Value::is_string)).map_or(1, Vec::len);
    let base64 = request.get("encoding_format").and_then(Value::as_str) == Some("base64");
    let data: Vec<Value> = (0..inputs)
        .map(|index| {
            let vector = vector(c.n.wrapping_add(index as u64));
            let embedding = if base64 { encode(&vector).into() } else { json!(vector) };
            json!({"object": "embedding", "index": index, "embedding": embedding})
        })
        .collect();
    json!({"object": "list", "data": data, "model": c.model, "usage": {"prompt_tokens": c.input_tokens, "total_tokens": c.input_tokens}})
}

fn vector(seed: u64) -> Vec<f32> {
    (0..DIMENSIONS).map(|i| f32::from(u16::try_from(seed.wrapping_mul(31).wrapping_add(i * 7) % 100).unwrap_or(0)) / 128.0).collect()
}

fn encode(vector: &[f32]) -> String {
    let bytes: Vec<u8> = vector.iter().flat_map(|f| f.to_le_bytes()).collect();
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
