-- SPDX-License-Identifier: Apache-2.0

-- /etc/slurm/job_submit.lua on slurmctld's host, with JobSubmitPlugins=lua: jobs that ask for MPS go to nodes that have
-- it. Without it nothing is lost: prolog and wrapper say the same later. A site that has a job_submit.lua calls mps_of from its own slurm_job_submit.

local feature = "mps" -- of the nodes with slurm-mps, and the trigger's constraint in policy.hcl
local word = "mps" -- the trigger's comment in policy.hcl

-- names reports whether a name stands whole in an expression: "mps" in "a100&mps", and not in "nomps".
local function names(expression, name)
   for found in string.gmatch(expression or "", "[^&|,%[%]%(%)%*:=%s]+") do
      if found == name then
         return true
      end
   end
   return false
end

-- option reports whether the job was submitted with --mps, which arrives as the variable SPANK_MPS of its prolog.
local function option(job)
   for _, entry in pairs(job.spank_job_env or {}) do
      if string.find(entry, "^S?P?A?N?K?_?MPS=") then
         return true
      end
   end
   return false
end

-- comments reports whether the comment is the word, or begins with it before a colon.
local function comments(comment)
   return comment == word or string.sub(comment or "", 1, #word + 1) == word .. ":"
end

-- mps_of puts the feature before a job that asks in another way.
function mps_of(job)
   local named = names(job.features, feature)
   if not (named or option(job) or comments(job.comment)) then
      return slurm.SUCCESS
   end
   local wanted = job.features or ""
   if named or string.find(wanted, "[%[%]%(%)%*]") then -- what cannot be added to is left to the site's policy
      return slurm.SUCCESS
   end
   if string.find(wanted, "|", 1, true) then
      wanted = "(" .. wanted .. ")"
   end
   if wanted ~= "" then
      wanted = wanted .. "&"
   end
   job.features = wanted .. feature
   return slurm.SUCCESS
end

function slurm_job_submit(job, partitions, uid)
   return mps_of(job)
end

function slurm_job_modify(job, record, partitions, uid)
   return slurm.SUCCESS
end

return slurm.SUCCESS
