//! What operators and owners end before its time: commands by annotation (decisions 8.3, 10.13), the clearing endpoints of the management
//! port (spec: resilience 15), a changed credential.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::apply::lockout_ended;
use super::cell::{ConnectionCell, ProviderCell, lock};
use super::effect::Cause;
use super::ended::Ended as EndedBefore;
use super::ledger::{Index, Ledger, Selection};
use super::lockout::LockKey;
use super::terminal::TerminalState;
use super::{BreakerPhase, Effect};
use crate::api::time::EpochMs;
use crate::classify::{Reason, Terminal};
use crate::snapshot::{Command, CommandKind, CommandVerb};

/// The last value of each command that was carried out.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct AppliedCommands(pub BTreeMap<CommandKey, AppliedCommand>);

/// Which command of which object.
pub(super) type CommandKey = (CommandKind, String, CommandVerb);

/// One carried out command.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AppliedCommand {
    /// When the compiler accepted it, milliseconds since the epoch.
    pub accepted_ms: i64,
    /// The annotation's value.
    pub value: String,
}

impl AppliedCommands {
    /// The values by `Kind/name/verb`.
    pub(super) fn values(&self) -> BTreeMap<String, String> {
        self.0.iter().map(|(key, applied)| (path(key), applied.value.clone())).collect()
    }

    /// What a checkpoint keeps.
    pub(super) fn memory(&self) -> BTreeMap<String, AppliedCommand> {
        self.0.iter().map(|(key, applied)| (path(key), applied.clone())).collect()
    }

    /// When the newest command that ends timers of an object was accepted, and the newest that also ends terminal states.
    pub(super) fn accepted(&self, kind: CommandKind, name: &str) -> (i64, i64) {
        let at = |verb| self.0.get(&(kind, name.to_owned(), verb)).map_or(i64::MIN, |a| a.accepted_ms);
        let reset = at(CommandVerb::Reset);
        (reset.max(at(CommandVerb::ClearCooldown)), reset)
    }
}

fn path((kind, name, verb): &CommandKey) -> String {
    let kind = match kind {
        CommandKind::Connection => "Connection",
        CommandKind::Provider => "Provider",
    };
    let verb = match verb {
        CommandVerb::ClearCooldown => "clearCooldown",
        CommandVerb::Reset => "reset",
    };
    format!("{kind}/{name}/{verb}")
}

/// The answer of the clearing endpoint (spec: resilience 15).
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cleared {
    /// Connections that rested and are back.
    pub cleared: usize,
    /// Connections that did not rest.
    pub unchanged: usize,
    /// Terminal connections, which are never cleared.
    pub skipped_terminal: usize,
    /// Running locks of models that were removed.
    pub lockouts_cleared: usize,
    /// The transitions.
    #[serde(skip)]
    pub effects: Vec<Effect>,
}

impl Ledger {
    /// Carries out commands whose value is new; forgets values of objects that have none any more.
    pub(super) fn apply_commands(&self, commands: &[Command], now: EpochMs) -> Vec<Effect> {
        let mut effects = Vec::new();
        let known: BTreeMap<CommandKey, AppliedCommand> = commands
            .iter()
            .map(|c| {
                let applied = AppliedCommand { accepted_ms: c.accepted_time.0, value: c.value.clone() };
                ((c.kind, c.name.clone(), c.command), applied)
            })
            .collect();
        let before = std::mem::replace(&mut lock(&self.applied).0, known.clone());
        for (key, applied) in &known {
            if before.get(key).is_some_and(|b| b.value == applied.value) {
                continue;
            }
            let (kind, name, verb) = key;
            let selection = match kind {
                CommandKind::Connection => Selection::Connections([name.clone()].into()),
                CommandKind::Provider => Selection::Provider(name.clone()),
            };
            effects.extend(match verb {
                // Everything goes that is known here; of what others know, what is older than the command: a ledger that starts with a command
                // may yet have to take over what came after it.
                CommandVerb::ClearCooldown => self.clear_known(&selection, EpochMs(applied.accepted_ms).min(now), now).effects,
                CommandVerb::Reset => self.reset_known(&selection, EpochMs(applied.accepted_ms).min(now), now),
            });
        }
        effects
    }

    /// Ends cooldowns, lockouts and rests of the window gate; terminal states stay.
    pub fn clear_cooldowns(&self, selection: &Selection, now: EpochMs) -> Cleared {
        self.clear_known(selection, now, now)
    }

    /// See [`Self::clear_cooldowns`]; what others know and is older than `ended` is over as well.
    fn clear_known(&self, selection: &Selection, ended: EpochMs, now: EpochMs) -> Cleared {
        let index = self.index.load_full();
        let mut cleared = Cleared::default();
        for provider in providers(&index, selection) {
            cleared.effects.extend(end_provider_rest(provider, ended, now));
        }
        for connection in connections(&index, selection) {
            let ended = end_timers(connection, Cause::Operator, ended, now);
            cleared.lockouts_cleared += ended.locks;
            match (ended.terminal, ended.rested) {
                (true, _) => cleared.skipped_terminal += 1,
                (false, true) => cleared.cleared += 1,
                (false, false) => cleared.unchanged += 1,
            }
            cleared.effects.extend(ended.effects);
        }
        self.changed(None);
        cleared
    }

    /// Ends everything: timers, terminal states, strikes, and the breaker of selected providers.
    pub fn reset(&self, selection: &Selection, now: EpochMs) -> Vec<Effect> {
        self.reset_known(selection, now, now)
    }

    /// See [`Self::reset`] and [`Self::clear_known`].
    fn reset_known(&self, selection: &Selection, ended: EpochMs, now: EpochMs) -> Vec<Effect> {
        let index = self.index.load_full();
        let mut effects = Vec::new();
        for provider in providers(&index, selection) {
            effects.extend(end_provider_rest(provider, ended, now));
            effects.extend(close_breaker(provider, ended, now));
        }
        for connection in connections(&index, selection) {
            effects.extend(end_timers(connection, Cause::Operator, ended, now).effects);
            effects.extend(end_terminal(connection, Cause::Operator, ended, now));
        }
        self.changed(None);
        effects
    }

    /// Closes all breakers; answers those that were not closed (spec: resilience 15, `POST /api/resilience/reset`).
    pub fn reset_breakers(&self, now: EpochMs) -> Vec<Effect> {
        let index = self.index.load_full();
        let effects = index.providers.values().filter_map(|provider| close_breaker(provider, now, now)).collect();
        self.changed(None);
        effects
    }

    /// Removes the locks of one model (or of a family by its name) on a connection; answers those that were running.
    pub fn clear_lockout(&self, connection: &str, model: &str, now: EpochMs) -> Vec<Effect> {
        let Some(cell) = self.connection(connection) else { return Vec::new() };
        let config = cell.provider().config();
        let keys = cell.update(now, |record| {
            let keys = LockKey::all_of(model, &config.families).into_iter().flatten().chain([LockKey::Family(model.to_owned())]);
            record.ended.single_locks(keys, now);
            record.locks.clear_model(model, &config.families, now)
        });
        self.changed(None);
        keys.iter().map(|key| lockout_ended(&cell, key, Cause::Operator)).collect()
    }
}

fn providers<'a>(index: &'a Index, selection: &Selection) -> Vec<&'a Arc<ProviderCell>> {
    match selection {
        Selection::All => index.providers.values().collect(),
        Selection::Provider(name) => index.providers.get(name.as_str()).into_iter().collect(),
        Selection::Connections(_) => Vec::new(),
    }
}

fn connections<'a>(index: &'a Index, selection: &Selection) -> Vec<&'a Arc<ConnectionCell>> {
    match selection {
        Selection::All => index.connections.values().collect(),
        Selection::Provider(name) => index.of_provider(name).iter().collect(),
        Selection::Connections(names) => names.iter().filter_map(|name| index.connections.get(name.as_str())).collect(),
    }
}

/// What ending the timers of a connection found.
#[derive(Debug, Default)]
pub(super) struct Ended {
    pub rested: bool,
    pub terminal: bool,
    pub locks: usize,
    pub effects: Vec<Effect>,
}

/// Ends every timer of a connection; its terminal state and strikes stay. What others know of it is over as far as it is older than `ended`.
pub(super) fn end_timers(cell: &ConnectionCell, by: Cause, ended: EpochMs, now: EpochMs) -> Ended {
    cell.update(now, |record| {
        let terminal = record.terminal.is_some();
        let rested = record.cooldown.until(now).is_some() || record.gate.until(now).is_some();
        record.cooldown.clear();
        record.gate.success();
        let keys = record.locks.clear(now);
        record.ended.timers(ended);
        let mut effects: Vec<_> = keys.iter().map(|key| lockout_ended(cell, key, by)).collect();
        if rested && !terminal {
            effects.push(Effect::CooldownEnded { provider: Arc::clone(cell.provider().name()), connection: Arc::clone(cell.name()), by });
        }
        Ended { rested: rested || !keys.is_empty(), terminal, locks: keys.len(), effects }
    })
}

/// Ends a terminal state and the strikes.
fn end_terminal(cell: &ConnectionCell, by: Cause, ended: EpochMs, now: EpochMs) -> Option<Effect> {
    cell.update(now, |record| {
        record.strikes.clear();
        record.ended.terminal(ended);
        let terminal = record.terminal.take()?;
        record.last_status = None;
        record.last_reason = None;
        Some(Effect::TerminalCleared {
            provider: Arc::clone(cell.provider().name()),
            connection: Arc::clone(cell.name()),
            state: terminal.state,
            by,
        })
    })
}

/// The owner changed the credential: what the old one caused is forgotten. Limits stay, for a new key may well be of the same account.
pub(super) fn forget_credential(cell: &ConnectionCell, now: EpochMs) -> Vec<Effect> {
    let by = Cause::CredentialChanged;
    cell.next_credential();
    let mut effects: Vec<_> = end_terminal(cell, by, now, now).into_iter().collect();
    cell.update(now, |record| {
        // Whatever others know of the new credential is news.
        record.ended = EndedBefore::default();
        record.locks.remove_if(|lock| of_credential(lock.reason));
        if of_credential(record.cooldown.reason()) && record.cooldown.until(now).is_some() {
            record.cooldown.clear();
            effects.push(Effect::CooldownEnded { provider: Arc::clone(cell.provider().name()), connection: Arc::clone(cell.name()), by });
        }
    });
    effects
}

/// The token endpoint will issue no other tokens: only the owner brings the connection back (decisions 8.5).
pub(super) fn expire(cell: &ConnectionCell, now: EpochMs) -> Option<Effect> {
    let (state, reason, status) = (Terminal::Expired, Reason::AuthError, 0);
    cell.update(now, |record| {
        if record.terminal.is_some() {
            return None;
        }
        record.terminal = Some(TerminalState::new(state, reason, status, now));
        record.last_reason = Some(reason);
        let (provider, connection) = (Arc::clone(cell.provider().name()), Arc::clone(cell.name()));
        Some(Effect::TerminalEntered { provider, connection, state, reason, status })
    })
}

/// Reasons that end with the credential that caused them.
pub(super) const fn of_credential(reason: Reason) -> bool {
    matches!(reason, Reason::AuthError | Reason::CreditsExhausted)
}

fn end_provider_rest(provider: &ProviderCell, ended: EpochMs, now: EpochMs) -> Option<Effect> {
    provider.update(now, |record, config| {
        let rested = record.window.until(now, &config.window).is_some();
        record.window.success();
        record.window_ended_ms = record.window_ended_ms.max(ended.0);
        rested.then(|| Effect::ProviderCooldownEnded { provider: Arc::clone(provider.name()), by: Cause::Operator })
    })
}

fn close_breaker(provider: &ProviderCell, ended: EpochMs, now: EpochMs) -> Option<Effect> {
    provider.update(now, |record, config| {
        let closed = record.breaker.phase(now, &config.breaker) == BreakerPhase::Closed;
        record.breaker.reset();
        record.breaker_ended_ms = record.breaker_ended_ms.max(ended.0);
        (!closed).then(|| Effect::BreakerClosed { provider: Arc::clone(provider.name()), by: Cause::Operator })
    })
}
