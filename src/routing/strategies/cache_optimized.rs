//! `CacheOptimized`: the same conversation to the same account, by rendezvous hashing (routing spec 4.18). Losing one connection only moves
//! the conversations that it had.

use sha2::{Digest, Sha256};

use super::{Candidate, OrderContext, Ranked, Strategy, Traits, split};

/// No state: the order follows from the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheOptimized;

/// The first 128 bits of SHA-256 over key, a zero byte and the candidate's identity.
fn rank(key: &str, candidate: &Candidate) -> u128 {
    let kind: &[u8] = if candidate.connection.is_some() { b"connection:" } else { b"execution:" };
    let identity = candidate.connection.unwrap_or(candidate.key);
    let digest = Sha256::new().chain_update(key).chain_update([0]).chain_update(kind).chain_update(identity.to_be_bytes()).finalize();
    digest.iter().take(16).fold(0, |value, byte| (value << 8) | u128::from(*byte))
}

impl Strategy for CacheOptimized {
    fn order(&self, candidates: &[Candidate], ctx: &mut OrderContext<'_>) -> Vec<Ranked> {
        let (mut available, rest) = split(candidates);
        if let Some(key) = ctx.request.cache_key.as_deref().filter(|_| candidates.len() > 1) {
            let mut ranked: Vec<(u128, usize)> = available.iter().map(|i| (candidates.get(*i).map_or(0, |c| rank(key, c)), *i)).collect();
            ranked.sort_by_key(|(rank, i)| (std::cmp::Reverse(*rank), *i));
            available = ranked.into_iter().map(|(_, i)| i).collect();
        }
        available.into_iter().chain(rest).map(Ranked::plain).collect()
    }

    fn traits(&self) -> Traits {
        Traits { availability: true, per_connection: true, protects_first: true, ..Traits::default() }
    }
}
