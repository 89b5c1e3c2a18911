-- Health of the kinds of omniroute.dev for Argo CD, by the rules of kstatus: what is being worked on is Progressing, what a person has to mend is Degraded.
-- A vendor's outage is neither: it shows in the condition Available, which this script does not look at.
local status = obj.status or {}
if obj.metadata.deletionTimestamp ~= nil then
  return { status = "Progressing", message = "being deleted" }
end
if status.observedGeneration ~= obj.metadata.generation then
  return { status = "Progressing", message = "the operator has not seen this generation yet" }
end
local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end
local function explain(condition)
  return (condition.reason or "") .. ": " .. (condition.message or "")
end
local ready = conditions.Ready
if conditions.Reconciling ~= nil and conditions.Reconciling.status == "True" then
  return { status = "Progressing", message = explain(ready or conditions.Reconciling) }
end
if conditions.Stalled ~= nil and conditions.Stalled.status == "True" then
  return { status = "Degraded", message = explain(ready or conditions.Stalled) }
end
if ready ~= nil and ready.status == "True" then
  return { status = "Healthy", message = ready.message or "" }
end
return { status = "Progressing", message = ready ~= nil and explain(ready) or "no Ready condition yet" }
