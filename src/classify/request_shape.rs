//! Statuses that usually blame the request: 400, 422, 413 (7.5), and what in them does not. Operator rules are asked before.

use super::Reason::{AuthError, ModelCapacity, RateLimitExceeded, Unknown};
use super::evidence::Evidence::*;
use super::evidence::Seen;
use super::row::Rest::{AuthStrike, Backoff, None as NoRest};
use super::row::{Only, Outcome, Row, rest, row};
use super::status::Statuses::Of;

/// The request may fit another model; the connection is not punished.
const OTHER_MODEL: Outcome = rest(ModelCapacity, NoRest).request().other_model();
/// Statuses of this table.
const SHAPE: super::status::Statuses = Of(&[400, 422]);
/// A key problem in any wording.
const KEY: Seen = Seen::of(&[KeyProblem]);

/// The rows.
pub static REQUEST_SHAPE: &[Row] = &[
    row("request.model-not-found", "7.5, 400 row 3", SHAPE, Seen::of(&[ModelNotFoundCode]), OTHER_MODEL),
    row("request.permission", "7.5, 400 row 3", SHAPE, Seen::of(&[PermissionType]), OTHER_MODEL).only(&[Only::PermissionBesideModel]),
    row("request.bad-key", "decisions 9.3", SHAPE, KEY, rest(AuthError, AuthStrike).strike()),
    row("request.bad-token", "decisions 9.3", SHAPE, Seen::of(&[TokenProblem]), rest(AuthError, AuthStrike).strike())
        .unless(Seen::of(&[TokenOfText, Parameter])),
    row("request.geo-blocked", "6.7 row 10", SHAPE, Seen::of(&[Geo]), rest(AuthError, Backoff)).only(&[Only::GoogleCloud]),
    row("request.gcp-project", "6.7 row 19", SHAPE, Seen::of(&[GcpProject]), rest(AuthError, Backoff)),
    row("request.parameter", "7.5 parameter", SHAPE, Seen::of(&[Parameter]), OTHER_MODEL),
    row("request.context-overflow", "7.5 context overflow", Of(&[400, 413, 422]), Seen::of(&[ContextOverflow, TokenLimit]), OTHER_MODEL),
    row("request.model-access", "7.5 model access", SHAPE, Seen::of(&[ModelAccess, ModelPermission]), OTHER_MODEL),
    row("request.function-name", "7.5 malformed", SHAPE, Seen::of(&[FunctionName, ImproperlyFormed]), OTHER_MODEL),
    row("request.malformed", "7.5 malformed", SHAPE, Seen::of(&[Malformed]), rest(Unknown, NoRest).stop()),
    row("request.nim-degraded", "7.5 NIM degraded", SHAPE, Seen::of(&[NimDegraded]), OTHER_MODEL),
    row("request.rate-words", "7.5, 400 row 5", SHAPE, Seen::of(&[RateWords, RateLimit]), rest(RateLimitExceeded, Backoff)),
];
