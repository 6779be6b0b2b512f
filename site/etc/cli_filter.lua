-- SPDX-License-Identifier: Apache-2.0

-- /etc/slurm/cli_filter.lua on submit hosts, with CliFilterPlugins=lua: a user who asks for MPS and for no GPU is told
-- so before the job is sent. It is a courtesy: what must hold is said by job_submit.lua and the prolog.

local feature = "mps" -- of the nodes with slurm-mps
local word = "mps" -- the trigger's comment in policy.hcl

local function names(expression, name)
   for found in string.gmatch(expression or "", "[^&|,%[%]%(%)%*:=%s]+") do
      if found == name then
         return true
      end
   end
   return false
end

-- wants reports whether --gres names this kind.
local function wants(options, kind)
   return names(options["gres"], kind) or names(options["gres"], "gres/" .. kind)
end

-- gpus reports whether the job asks for a GPU in one of the ways.
local function gpus(options)
   for _, name in ipairs({ "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket" }) do
      if (options[name] or "") ~= "" then
         return true
      end
   end
   return wants(options, "gpu") or wants(options, "shard") or wants(options, "mps")
end

-- option reports whether --mps was given, where the SPANK plugin is installed.
local function option(options)
   local spank = options["spank"]
   local plugin = spank and spank["slurm_mps"]
   return plugin ~= nil and plugin["mps"] ~= nil
end

function slurm_cli_setup_defaults(options, early)
   return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, component)
   local comment = options["comment"] or ""
   local commented = comment == word or string.sub(comment, 1, #word + 1) == word .. ":"
   if not (commented or names(options["constraint"], feature) or option(options)) then
      return slurm.SUCCESS
   end
   if not gpus(options) then
      slurm.log_error("a job with MPS needs a GPU: add --gres=gpu:N")
      return slurm.ERROR
   end
   return slurm.SUCCESS
end

function slurm_cli_post_submit(component, job, step)
   return slurm.SUCCESS
end

return slurm.SUCCESS
