"""Chat templates for tests: each uses the features of the released templates of a family (named in the key), with different
words."""

TEMPLATES = {
    # A header per message, trimmed contents, the first one with BOS (as in Llama 3).
    "headers": """{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|head|>' + message['role'] + '<|/head|>\n\n' + message['content'] | trim + '<|eot|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|head|>assistant<|/head|>\n\n' }}{% endif %}""",
    # An optional date, a system message taken off the front by a slice, tools in the first question (as in Llama 3.1,
    # 3.2).
    "dated": """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user is defined %}{%- set tools_in_user = true %}{%- endif %}
{%- if not date is defined %}
    {%- if strftime_now is defined %}
        {%- set date = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date = "01 Jan 2020" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|head|>system<|/head|>\n\n" }}
{%- if tools is not none %}{{- "Knows: tools\n" }}{%- endif %}
{{- "Today: " + date + "\n\n" }}
{{- system }}
{{- "<|eot|>" }}
{%- if tools_in_user and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("There is no first question") }}
    {%- endif %}
    {{- '<|head|>user<|/head|>\n\n' -}}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
    {{- first + "<|eot|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|head|>' + message['role'] + '<|/head|>\n\n' + message['content'] | trim + '<|eot|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("One call at a time") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|head|>assistant<|/head|>\n\n' -}}
        {{- '{"name": "' + call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|head|>ipython<|/head|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|head|>assistant<|/head|>\n\n' }}
{%- endif %}
""",
    # A default system message that lists the tools, answers of tools grouped (as in ChatML, Qwen2.5).
    "im": """{%- if tools %}
    {{- '<|start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'Be of help.' }}
    {%- endif %}
    {{- "\n\n# Tools\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n{\\"name\\": <name>}<|end|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|start|>system\n' + messages[0]['content'] + '<|end|>\n' }}
    {%- else %}
        {{- '<|start|>system\nBe of help.<|end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|start|>' + message.role + '\n' + message.content + '<|end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|start|>' + message.role }}
        {%- if message.content %}
            {{- '\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</call>' }}
        {%- endfor %}
        {{- '<|end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|start|>user' }}
        {%- endif %}
        {{- '\n<answer>\n' }}
        {{- message.content }}
        {{- '\n</answer>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant\n' }}
{%- endif %}
""",
    # Thoughts that only the newest answer keeps, found from the end by a namespace (as in Qwen3).
    "thinking": """{%- set ns = namespace(multi_step=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and message.content is string and not(message.content.startswith('<answer>') and message.content.endswith('</answer>')) %}
        {%- set ns.multi_step = false %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role == "assistant" %}
        {%- set thoughts = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thoughts = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set thoughts = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query and (loop.last or (not loop.last and thoughts)) %}
            {{- '<|start|>' + message.role + '\n<think>\n' + thoughts.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|start|>' + message.role + '\n' + content }}
        {%- endif %}
        {{- '<|end|>\n' }}
    {%- else %}
        {{- '<|start|>' + message.role + '\n' + content + '<|end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}""",
    # Roles that must alternate, the system message before the last question, tools there too (as in Mistral v0.3,
    # Nemo).
    "instructions": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("user and assistant have to take turns") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("ids of calls have 9 characters") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool" %}
        {{- '[RESULTS] {"content": ' + message.content|string + "}[/RESULTS]" }}
    {%- else %}
        {{- raise_exception("no such role") }}
    {%- endif %}
{%- endfor %}
""",
    # No system message, another name for the assistant (as in Gemma 2).
    "model_turns": """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('No system message here') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles have to alternate') }}{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<turn>model\n'}}{% endif %}""",
    # A chain of elif, the end of the text if no answer is wanted (as in Phi 3, Phi 4).
    "tags": """{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}""",
    # Flags of a namespace, system messages gathered first, thoughts cut off (as in DeepSeek V3).
    "flags": """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='', is_first_sp=true) %}{%- for message in messages %}{%- if message['role'] == 'system' %}{%- if ns.is_first_sp %}{% set ns.system_prompt = ns.system_prompt + message['content'] %}{% set ns.is_first_sp = false %}{%- else %}{% set ns.system_prompt = ns.system_prompt + '\n\n' + message['content'] %}{%- endif %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system_prompt }}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<|User|>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and 'tool_calls' in message and message['tool_calls'] %}{%- set ns.is_tool = false -%}{%- for tool in message['tool_calls'] %}{%- if not ns.is_first %}{%- if message['content'] is none %}{{'<|Assistant|><|calls|>' + tool['type'] + '<|sep|>' + tool['function']['name'] + '\n' + '```json' + '\n' + tool['function']['arguments']|tojson + '\n' + '```'}}{%- else %}{{'<|Assistant|>' + message['content'] + '<|calls|>' + tool['function']['name']}}{%- endif %}{%- set ns.is_first = true -%}{%- else %}{{'\n<|call|>' + tool['function']['name']}}{%- endif %}{%- endfor %}{{'<|/calls|>' + eos_token}}{%- endif %}{%- if message['role'] == 'assistant' and not message['tool_calls'] %}{%- if ns.is_tool %}{{'<|/outputs|>' + message['content'] + eos_token}}{%- set ns.is_tool = false -%}{%- else %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<|Assistant|>' + content + eos_token}}{%- endif %}{%- endif %}{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{%- if ns.is_output_first %}{{'<|outputs|>' + message['content']}}{%- set ns.is_output_first = false %}{%- else %}{{'\n<|output|>' + message['content']}}{%- endif %}{%- endif %}{%- endfor -%}{% if ns.is_tool %}{{'<|/outputs|>'}}{% endif %}{% if add_generation_prompt and not ns.is_tool %}{{'<|Assistant|>'}}{% endif %}""",
    # Macros that call each other and write types of parameters, channels, a date (as in GPT-OSS).
    "channels": """{#- Types of parameters -#}
{%- macro type_of(spec, required=[], nullable=false) -%}
    {%- if spec.type == "array" -%}
        {%- if spec['items'] -%}
            {{- type_of(spec['items']) + "[]" -}}
        {%- else -%}
            {{- "any[]" -}}
        {%- endif -%}
    {%- elif spec.type is defined and spec.type is iterable and spec.type is not string and spec.type is not mapping and spec.type[0] is defined -%}
        {{- spec.type | join(" | ") -}}
    {%- elif spec.enum -%}
        {{- '"' + spec.enum|join('" | "') + '"' -}}
    {%- elif spec.type == "object" -%}
        {%- if spec.properties -%}
            {{- "{\n" -}}
            {%- for name, inner in spec.properties.items() -%}
                {{- name -}}
                {%- if name not in (spec.required or []) -%}
                    {{- "?" -}}
                {%- endif -%}
                {{- ": " }}
                {{ type_of(inner, spec.required or []) }}
                {%- if not loop.last -%}
                    {{- ", " -}}
                {%- endif -%}
            {%- endfor -%}
            {{- "}" -}}
        {%- else -%}
            {{- "object" -}}
        {%- endif -%}
    {%- else -%}
        {{- spec.type|default("any") -}}
    {%- endif -%}
{%- endmacro -%}
{%- macro namespace_of(name, tools) -%}
    {{- "## " + name + "\n\n" }}
    {%- for tool in tools %}
        {%- set tool = tool.function %}
        {{- "// " + tool.description + "\ntype " + tool.name + " = (_: " }}
        {{- type_of(tool.parameters) }}
        {{- ") => any;\n" }}
    {%- endfor %}
{%- endmacro -%}
{{- "<|start|>system<|message|>Date: " + strftime_now("%Y-%m-%d") + "\n" }}
{%- if reasoning_effort is not defined %}
    {%- set reasoning_effort = "medium" %}
{%- endif %}
{{- "Reasoning: " + reasoning_effort + "<|end|>" }}
{%- if messages[0].role == "developer" or messages[0].role == "system" %}
    {%- set developer_message = messages[0].content %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set developer_message = "" %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if developer_message or tools %}
    {{- "<|start|>developer<|message|>" }}
    {%- if developer_message %}
        {{- developer_message }}
    {%- endif %}
    {%- if tools -%}
        {{- "\n\n" }}
        {{- namespace_of("functions", tools) }}
    {%- endif -%}
    {{- "<|end|>" }}
{%- endif %}
{%- set last_tool_call = namespace(name=none) %}
{%- for message in loop_messages -%}
    {%- if message.role == 'assistant' -%}
        {%- if "content" in message and message.content %}
            {%- if "<|channel|>" in message.content %}
                {{- raise_exception("No channels in contents") }}
            {%- endif %}
        {%- endif %}
        {%- if "tool_calls" in message %}
            {%- set tool_call = message.tool_calls[0] %}
            {%- if tool_call.function %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- "<|start|>assistant to=functions." + tool_call.name + "<|channel|>commentary json<|message|>" }}
            {{- tool_call.arguments|tojson }}
            {{- "<|call|>" }}
            {%- set last_tool_call.name = tool_call.name %}
        {%- elif loop.last and not add_generation_prompt %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}
        {%- else %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
            {%- set last_tool_call.name = none %}
        {%- endif %}
    {%- elif message.role == 'tool' -%}
        {%- if last_tool_call.name is none %}
            {{- raise_exception("An answer without a call") }}
        {%- endif %}
        {{- "<|start|>functions." + last_tool_call.name }}
        {{- " to=assistant<|message|>" + message.content|tojson + "<|end|>" }}
    {%- elif message.role == 'user' -%}
        {{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|start|>assistant
{%- endif -%}
""",
    # Separate lines, so that trimmed blocks decide (as in Zephyr).
    "lines": """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}""",
    # Generation blocks mark the assistant's text.
    "blocks": """{{ bos_token }}{% for message in messages %}
    {%- if message.role == 'assistant' %}
<|start|>assistant
{% generation %}{{ message.content or '' }}{% for call in message.tool_calls or [] %}<call>{{ call.function | tojson }}</call>{% endfor %}<|end|>{% endgeneration %}

{% else %}
<|start|>{{ message.role }}
{{ message.content }}<|end|>
{% endif %}
{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant
{% endif %}""",
}
