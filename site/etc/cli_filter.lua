-- /etc/slurm/cli_filter.lua on submit hosts, with CliFilterPlugins=lua: a user who asks for MPS and for no GPU, or for
-- shards, is told so before the job is sent. It is a courtesy: what must hold is said by job_submit.lua and the prolog.

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

-- wants reports whether any of the options by which GPUs are asked for names this kind.
local function wants(options, kind)
   for _, item in ipairs({ options["gres"] or "" }) do
      if names(item, kind) or names(item, "gres/" .. kind) then
         return true
      end
   end
   return false
end

-- gpus reports whether the job asks for a GPU in one of the ways.
local function gpus(options)
   for _, name in ipairs({ "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket" }) do
      if (options[name] or "") ~= "" then
         return true
      end
   end
   return wants(options, "gpu")
end

function slurm_cli_setup_defaults(options, early)
   return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, component)
   local comment = options["comment"] or ""
   if not (names(options["constraint"], feature) or comment == word or string.sub(comment, 1, #word + 1) == word .. ":") then
      return slurm.SUCCESS
   end
   if wants(options, "shard") or wants(options, "mps") then
      slurm.log_error("MPS shares whole GPUs among the job's ranks: ask for --gres=gpu:N, not for gres/shard or gres/mps")
      return slurm.ERROR
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
